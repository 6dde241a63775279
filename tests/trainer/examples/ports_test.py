#!/usr/bin/env python3
"""ports_test.py <bin folder> <trainer/examples/ports> <resnet_reference>: the ported programs train, and the keys
of the DeepSpeed file that have no effect are told by name."""

import json
import os
import re
import subprocess
import sys
import tempfile

TRAINED = 0.9  # of the test digits; a guess has 0.1
LEARNT = 3.0  # loss of a character; a guess among 65 has 4.2
DIGITS = (("port_fairscale", 2, ""), ("port_fsdp", 4, "--replicate 2"), ("port_pipeline", 3, ""),
          ("port_pipeline", 2, "--schedule zbv --micro-batches 6"), ("port_tensor_linear", 3, ""),
          ("port_fsdp_pipeline", 4, "--stages 2"), ("port_torchshard", 3, ""), ("port_torchshard", 4, "--group-size 2"))


CUT = "model.blocks.1.attention.q.weight"  # a layer that is cut in port_parallelize


def whole_sizes(checkpoint):
    """The sizes of the tensors of a checkpoint, by name; none where there is no checkpoint."""
    index = os.path.join(checkpoint, "index.json")
    if not os.path.exists(index):
        return {}
    with open(index, encoding="utf-8") as file:
        return {name: tensor["sizes"] for name, tensor in json.load(file)["body"]["tensors"].items()}


class Ports:
    def __init__(self, folder):
        self.folder = folder
        self.failed = False

    def run(self, name, options, *launch, env=None):
        command = [os.path.join(self.folder, "dlaunch"), *launch, "--", os.path.join(self.folder, name), *options.split()]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)

    def check(self, ended, what, right):
        print(what, flush=True)
        if ended.returncode != 0 or not right:
            print(f"exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
            self.failed = True

    def train(self, name, ranks, options):
        """Checks the number that a program's last line tells, and returns what it has said."""
        ended = self.run(name, options, "--nproc-per-node", str(ranks))
        found = re.search(r"(test accuracy|validation loss) ([0-9.]+)\n", ended.stdout)
        what, number = (found.group(1), float(found.group(2))) if found else ("nothing", -1)
        right = number >= TRAINED if what == "test accuracy" else 0 < number <= LEARNT
        self.check(ended, f"{name} {options}: {what} {number}", right)
        return ended.stdout + ended.stderr

    def head_tail(self):
        """Groups of two devices: all in turn, and at once on two nodes. Other groups than the job's are refused."""
        for micro_batches, nodes in ((1, 1), (4, 2)):
            layout = ["--simulate-nodes", str(nodes), "--simulate-gpus", str(8 // nodes), "--gpus-per-rank", "2"]
            options = f"--group_per_node {4 // nodes} --micro_batches {micro_batches}"
            ended = self.run("port_head_tail", options, *layout)
            found = re.search(r"test accuracy ([0-9.]+)", ended.stdout)
            self.check(ended, f"port_head_tail {options}: {found}", found and float(found.group(1)) >= TRAINED)
        ended = self.run("port_head_tail", "--groups_size 2 --group_per_node 4", "--nproc-per-node", "2")
        told = "has 1 devices, and its node 2 ranks; start it by: dlaunch --gpus-per-rank 2 --nproc-per-node 4 port_head_tail"
        if ended.returncode == 0 or told not in ended.stdout + ended.stderr:
            print(f"port_head_tail without devices: exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
            self.failed = True

    def million_classes(self, ranks, classes, features, lr):
        """Each rank tells the memory of its part of the classes, which is about the formula's. The loss falls."""
        options = f"--classes {classes} --features {features} --batch-size 64 --steps 3 --lr {lr}"
        ended = self.run("port_million_classes", options, "--nproc-per-node", str(ranks))
        losses = [float(loss) for loss in re.findall(r"step [0-9]: loss ([0-9.]+)", ended.stdout)]
        told = re.findall(rf"{classes // ranks} classes: ([0-9]+) MiB, by formula ([0-9]+) MiB", ended.stdout)
        right = (len(losses) == 3 and losses[-1] < losses[0] - 1 and len(told) == ranks and
                 all(0.7 * int(formula) < int(peak) < 1.4 * int(formula) for peak, formula in told))
        self.check(ended, f"port_million_classes {options}: {losses} {told}", right)

    def parallelize(self):
        """One rank's losses on every mesh, where 3 ranks have unequal numbers of heads. Checkpoints have whole sizes."""
        expected = []
        with tempfile.TemporaryDirectory(prefix="cohort-ports-") as folder:
            for ranks, tensor in ((1, 1), (2, 2), (4, 2), (3, 3), (2, 1)):
                save = os.path.join(folder, f"{ranks}-{tensor}")
                options = f"--epochs 1 --tensor {tensor} --save {save}"
                ended = self.run("port_parallelize", options, "--nproc-per-node", str(ranks))
                losses = [float(loss) for loss in re.findall(r"step [0-9]+: loss ([0-9.]+)", ended.stdout)]
                expected = expected or losses
                right = len(losses) == len(expected) == 30 and losses[-1] < losses[0] - 0.5 and all(
                    abs(loss - one) <= 1e-4 for loss, one in zip(losses, expected))
                self.check(ended, f"port_parallelize on {ranks} ranks, tensor={tensor}: {losses}, one rank {expected}", right)
                self.check(ended, f"its checkpoint {save}", whole_sizes(save).get(CUT) == [48, 48])

    def resnet(self, reference_program):
        """Two devices of one rank, and two ranks with two each: one process's losses, also where splits leave a rest."""
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # batch norm of a few rows enlarges differences of rounding
        for ranks, batch, split in ((1, 8, 2), (2, 8, 2), (1, 10, 4), (2, 11, 4), (1, 4, 6)):
            reference = subprocess.run([reference_program, "2", str(batch), str(split)], capture_output=True, text=True,
                                       timeout=100, env=one_thread)
            expected = re.findall(r"batch [12]: loss ([0-9.]+)", reference.stdout)
            options = f"--batches 2 --batch-size {batch} --split-size {split} --classes 10 --image-size 64 --width 4"
            ended = self.run("port_resnet", options, "--simulate-gpus", str(2 * ranks), "--gpus-per-rank", "2",
                             env=one_thread)
            losses = re.findall(r"batch [12]: loss ([0-9.]+)", ended.stdout)
            right = len(losses) == len(expected) == 2 and all(
                abs(float(loss) - float(one)) < 1e-3 for loss, one in zip(losses, expected))
            self.check(ended, f"port_resnet {options}: {losses}, one process {expected}", right)


def main(folder, examples, resnet_reference, part=""):
    ports = Ports(folder)
    if part == "million":
        ports.million_classes(4, 1000000, 64, 3)
        return 1 if ports.failed else 0
    if part == "parallelize":
        ports.parallelize()
        return 1 if ports.failed else 0
    for name, ranks, options in DIGITS:
        ports.train(name, ranks, options)
    told = ports.train("port_deepspeed", 2, f"--deepspeed_config {os.path.join(examples, 'port_deepspeed.json')}")
    for key in ("wall_clock_breakdown", "zero_optimization.overlap_comm"):
        if f"{key} has no effect" not in told:
            print(f"not told: {key}\n{told}")
            ports.failed = True
    # One process's losses, however the matrices are cut.
    losses = [re.findall(r"loss ([0-9.]+)", ports.train("port_torchshard_gpt", ranks, "--steps 40")) for ranks in (2, 4)]
    if not all(abs(float(one) - float(other)) < 0.01 for one, other in zip(*losses)):
        print(f"port_torchshard_gpt: {losses}")
        ports.failed = True
    ports.train("port_torchshard_gpt", 4, "--group-size 2 --steps 40")
    ports.resnet(resnet_reference)
    ports.head_tail()
    ports.million_classes(2, 100000, 256, 3)
    return 1 if ports.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
