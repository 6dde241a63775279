"""train_gpt on meshes of several axes: each step's loss and gradient norm are one process's.

The model is cut where nothing divides: 65 characters, and 4 heads over 3 ranks."""

import re
import subprocess
import sys

TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 6e-2  # sums round to 8 bits, in other places on each mesh and processor; 3e-2 was seen
MODEL = ["--steps", "20", "--log-every", "1", "--batch-size", "12", "--layers", "3", "--width", "32", "--context", "17",
         "--sample", "0"]
LINE = re.compile(r"step +(\d+)/\d+ +loss ([\d.]+) +gradient norm ([\d.]+)")


def steps(command):
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
    found = [(float(loss), float(norm)) for _, loss, norm in LINE.findall(output.stdout)]
    if output.returncode != 0 or len(found) != 20:
        sys.exit(f"{' '.join(command)}: exit status {output.returncode}, {len(found)} steps\n{output.stdout}")
    return found


def compare(name, actual, expected, tolerance=TOLERANCE):
    for step, (mine, other) in enumerate(zip(actual, expected), 1):
        for what, a, b in zip(("loss", "gradient norm"), mine, other):
            if abs(a - b) > tolerance * max(1, abs(b)):
                sys.exit(f"{name}: {what} of step {step} is {a}, and one process's is {b}")
    print(f"{name}: {len(actual)} steps, last loss {actual[-1][0]}")


def main(dlaunch, train_gpt, ranks_and_options):
    plain = steps([dlaunch, "--nproc-per-node", "1", "--", train_gpt, *MODEL])
    dropped = steps([dlaunch, "--nproc-per-node", "1", "--", train_gpt, *MODEL, "--dropout", "0.2"])
    for ranks, *options in ranks_and_options:
        run = [dlaunch, "--nproc-per-node", str(ranks), "--", train_gpt, *MODEL, *options]
        compare(" ".join(options), steps(run), dropped if "--dropout" in options else plain)
    for mode, mesh in (("ddp", "replicate=2,tensor=2"), ("fsdp", "shard=2,tensor=2")):
        small = ["--", train_gpt, *MODEL, "--dtype", "bfloat16"]
        one = steps([dlaunch, "--nproc-per-node", "1", *small, "--mode", mode])
        compare(f"{mesh} in bfloat16", steps([dlaunch, "--nproc-per-node", "4", *small, "--mesh", mesh]), one,
                BFLOAT16_TOLERANCE)


main(sys.argv[1], sys.argv[2], [
    (2, "--mesh", "tensor=2"),
    (2, "--mesh", "tensor=2", "--sequence-parallel", "--chunks", "3"),
    (3, "--mesh", "tensor=3", "--sequence-parallel", "--dropout", "0.2", "--checkpoint-activations"),
    (4, "--mesh", "replicate=2,tensor=2", "--dropout", "0.2"),
    (4, "--mesh", "tensor=2,shard=2", "--sequence-parallel", "--checkpoint-activations", "--dropout", "0.2"),
    (8, "--mesh", "replicate=2,shard=2,tensor=2"),
])
