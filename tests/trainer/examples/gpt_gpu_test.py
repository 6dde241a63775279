"""train_gpt on a CUDA device: each step's loss and gradient norm are the CPU's, in one rank and in two that share it.

Arguments: dlaunch, train_gpt, with_cuda or without_cuda, and, for a part of it, a word of the options. NCCL takes two
ranks of one device for two hosts when their NCCL_HOSTID differs. Sums are in another order than the CPU's, so the
tolerance is wider than between meshes of one device."""

import os
import re
import subprocess
import sys
import tempfile
import time

TOLERANCE = 1e-3
BFLOAT16_TOLERANCE = 3e-2
SKIPPED = 77
MODEL = ["--steps", "20", "--log-every", "1", "--batch-size", "12", "--layers", "3", "--width", "32", "--context", "17",
         "--sample", "0"]
DROPOUT = ["--dropout", "0.2"]
BFLOAT16 = ["--dtype", "bfloat16"]
LINE = re.compile(r"step +(\d+)/\d+ +loss ([\d.]+) +gradient norm ([\d.]+)")
CASES = [
    (1, ["--mode", "ddp"]),
    (1, ["--mode", "fsdp", *DROPOUT]),
    (1, ["--mode", "ddp", "--checkpoint-activations", *DROPOUT]),
    (2, ["--mode", "ddp"]),
    (2, ["--mode", "ddp", "--accumulate", "3"]),
    (2, ["--mode", "zero1"]),
    (2, ["--mode", "zero2"]),
    (2, ["--mode", "fsdp"]),
    (2, ["--mode", "fsdp", "--checkpoint-activations", *DROPOUT]),
    (2, ["--mode", "ddp", *BFLOAT16]),
    (2, ["--mode", "fsdp", *BFLOAT16]),
    (2, ["--mesh", "replicate=2", *DROPOUT]),
    (2, ["--mesh", "shard=2"]),
    (2, ["--mesh", "tensor=2"]),
    (2, ["--mesh", "tensor=2", "--sequence-parallel", "--chunks", "3", *DROPOUT]),
    (2, ["--mesh", "pipeline=2", *DROPOUT]),
    (2, ["--mesh", "pipeline=2", "--schedule", "1f1b", "--micro-batches", "4"]),
    (2, ["--mesh", "pipeline=2", "--schedule", "zbv", "--micro-batches", "4"]),
    (2, ["--mode", "ddp", "--lora", "4"]),
    (4, ["--mesh", "pipeline=2,tensor=2"]),
    (4, ["--mesh", "replicate=2,shard=2"]),
    (4, ["--mesh", "shard=2,tensor=2", *BFLOAT16]),
]


def train(command):
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    found = [(float(loss), float(norm)) for _, loss, norm in LINE.findall(output.stdout)]
    return found, output


def difference(actual, expected):
    return max(abs(a - b) / max(1, abs(b)) for one, other in zip(actual, expected) for a, b in zip(one, other))


class Runs:
    def __init__(self, dlaunch, train_gpt):
        self.dlaunch, self.train_gpt = dlaunch, train_gpt
        self.of_cpu = {}
        self.failed = 0

    def on_cpu(self, options):
        """A name for all that changes the numbers: neither mode nor mesh does."""
        numbers = [*(DROPOUT if "--dropout" in options else []), *(BFLOAT16 if "bfloat16" in options else [])]
        if "--lora" in options:
            numbers += ["--lora", "4"]
        key = tuple(numbers)
        if key not in self.of_cpu:
            steps, output = train([self.dlaunch, "--nproc-per-node", "1", "--", self.train_gpt, *MODEL, *numbers])
            if len(steps) != 20:
                sys.exit(f"on the CPU, {numbers}: exit status {output.returncode}\n{output.stdout}")
            self.of_cpu[key] = steps
        return self.of_cpu[key]

    def on_gpu(self, ranks, options):
        return train([self.dlaunch, "--simulate-nodes", str(ranks), "--gpus-per-rank", "1", "--", "sh", "-c",
                      'NCCL_HOSTID=$RANK exec "$@"', "sh", self.train_gpt, *MODEL, *options])

    def check(self, ranks, options):
        name = f"{ranks} ranks, {' '.join(options)}"
        expected = self.on_cpu(options)
        start = time.monotonic()
        try:
            steps, output = self.on_gpu(ranks, options)
        except subprocess.TimeoutExpired as expired:
            print(f"FAILED {name}: not ended after {expired.timeout} s\n{expired.output}", flush=True)
            self.failed += 1
            return
        tolerance = BFLOAT16_TOLERANCE if "bfloat16" in options else TOLERANCE
        if output.returncode != 0 or len(steps) != 20 or "on cuda:0" not in output.stdout:
            print(f"FAILED {name}: exit status {output.returncode}, {len(steps)} steps\n{output.stdout[-3000:]}")
            self.failed += 1
            return
        apart = difference(steps, expected)
        self.failed += apart > tolerance
        print(f"{'FAILED' if apart > tolerance else 'ok'} {name}: {apart:.2g} from the CPU, {tolerance} allowed, "
              f"{time.monotonic() - start:.1f} s", flush=True)

    def resumes_across_devices(self):
        """A checkpoint of two ranks on the device, gone on with by one on the CPU."""
        with tempfile.TemporaryDirectory() as folder:
            half = [*MODEL, "--checkpoints", folder, "--save-every", "10"]
            half[1] = "10"
            _, first = train([self.dlaunch, "--simulate-nodes", "2", "--gpus-per-rank", "1", "--", "sh", "-c",
                              'NCCL_HOSTID=$RANK exec "$@"', "sh", self.train_gpt, *half, "--mode", "fsdp"])
            steps, second = train([self.dlaunch, "--nproc-per-node", "1", "--", self.train_gpt, *MODEL,
                                   "--checkpoints", folder, "--resume"])
        expected = self.on_cpu([])[10:]
        if first.returncode != 0 or second.returncode != 0 or len(steps) != 10:
            print(f"FAILED to resume\n{first.stdout[-3000:]}\n{second.stdout[-3000:]}")
            self.failed += 1
            return
        apart = difference(steps, expected)
        self.failed += apart > TOLERANCE
        print(f"{'FAILED' if apart > TOLERANCE else 'ok'} resumed on the CPU: {apart:.2g} from the CPU")


def why_not(dlaunch, train_gpt, with_cuda):
    if not with_cuda:
        return "this libtorch was built without CUDA"
    probe = subprocess.run([dlaunch, "--gpus-per-rank", "1", "--", "true"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=60)
    return f"no CUDA device: {probe.stdout.strip()}" if probe.returncode != 0 else ""


def main(dlaunch, train_gpt, with_cuda, only=""):
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    reason = why_not(dlaunch, train_gpt, with_cuda == "with_cuda")
    if reason:
        print(f"skipped: train_gpt on a GPU: {reason}")
        sys.exit(SKIPPED)
    runs = Runs(dlaunch, train_gpt)
    for ranks, options in CASES:
        if only in " ".join(options):
            runs.check(ranks, options)
    runs.resumes_across_devices()
    sys.exit(f"{runs.failed} failed" if runs.failed else 0)


main(*sys.argv[1:])
