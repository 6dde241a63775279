"""train_gpt on meshes with a pipeline axis: each step's loss and gradient norm are one process's, with an embedding that
the first and the last stage share, under every schedule. Checkpoints move between pipelines and one process.

The model is cut where nothing divides: 65 characters, 3 layers."""

import os
import re
import subprocess
import sys
import tempfile

TOLERANCE = 1e-4
STEPS = 20
MODEL = ["--log-every", "1", "--batch-size", "12", "--layers", "3", "--width", "32", "--context", "17", "--sample", "0",
         "--tie-embeddings"]
LINE = re.compile(r"step +(\d+)/\d+ +loss ([\d.]+) +gradient norm ([\d.]+)")


def steps(dlaunch, train_gpt, ranks, *options, first=1, last=STEPS):
    """Loss and norm of steps `first` to `last`. 8 ranks are two nodes of 4."""
    nodes = ["--simulate-nodes", "2", "--nproc-per-node", "4"] if ranks == 8 else ["--nproc-per-node", str(ranks)]
    return steps_of([dlaunch, *nodes, "--", train_gpt, *MODEL, "--steps", str(last), *options], first, last)


def steps_of(command, first=1, last=STEPS):
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
    found = {int(step): (float(loss), float(norm)) for step, loss, norm in LINE.findall(output.stdout)}
    if output.returncode != 0 or sorted(found) != list(range(first, last + 1)):
        sys.exit(f"{' '.join(command)}: exit status {output.returncode}, steps {sorted(found)}\n{output.stdout}")
    return found


def compare(name, actual, expected):
    for step, mine in actual.items():
        for what, a, b in zip(("loss", "gradient norm"), mine, expected[step]):
            if abs(a - b) > TOLERANCE * max(1, abs(b)):
                sys.exit(f"{name}: {what} of step {step} is {a}, and one process's is {b}")
    print(f"{name}: {len(actual)} steps, last loss {actual[max(actual)][0]}", flush=True)


def compare_default_model(dlaunch, train_gpt):
    """The model, batch and schedule that users get."""
    plain = steps_of([train_gpt, "--steps", "20", "--log-every", "1"])
    command = ("dlaunch --simulate-nodes 2 --nproc-per-node 4 train_gpt --mesh pipeline=2,replicate=1,shard=2,tensor=2 "
               "--steps 20")
    programs = {"dlaunch": dlaunch, "train_gpt": train_gpt}
    compare(command, steps_of([programs.get(word, word) for word in command.split()] + ["--log-every", "1"]), plain)


def main(dlaunch, train_gpt, part):
    def run(*arguments, **which):
        return steps(dlaunch, train_gpt, *arguments, **which)

    plain = run(1)
    if part == "schedules":
        for schedule in ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv"):
            options = ("--mesh", "pipeline=2", "--schedule", schedule, "--micro-batches", "4")
            compare(" ".join(options), run(2, *options), plain)
        with tempfile.TemporaryDirectory() as folder:
            there, back = os.path.join(folder, "there"), os.path.join(folder, "back")
            half = ("--save-every", str(STEPS // 2))
            run(2, "--mesh", "pipeline=2", "--schedule", "zbv", "--checkpoints", there, *half, last=STEPS // 2)
            compare("from a pipeline", run(1, "--checkpoints", there, *half, "--resume", first=STEPS // 2 + 1), plain)
            run(1, "--checkpoints", back, *half, last=STEPS // 2)
            compare("to a pipeline", run(3, "--mesh", "pipeline=3", "--checkpoints", back, *half, "--resume",
                                         first=STEPS // 2 + 1), plain)
        return
    compare_default_model(dlaunch, train_gpt)
    dropped = run(1, "--dropout", "0.2")
    for ranks, *options in ((4, "--mesh", "pipeline=2,replicate=2", "--micro-batches", "3", "--dropout", "0.2"),
                            (4, "--mesh", "pipeline=2,tensor=2", "--micro-batches", "3", "--sequence-parallel"),
                            (4, "--mesh", "pipeline=2,shard=2", "--schedule", "interleaved", "--micro-batches", "2",
                             "--checkpoint-activations", "--dropout", "0.2"),
                            (8, "--mesh", "pipeline=2,replicate=1,shard=2,tensor=2", "--micro-batches", "2")):
        compare(" ".join(options), run(ranks, *options), dropped if "--dropout" in options else plain)
    with tempfile.TemporaryDirectory() as folder:
        sharded = ("--mesh", "pipeline=2,shard=2", "--schedule", "zbv", "--micro-batches", "3")
        there, back = os.path.join(folder, "there"), os.path.join(folder, "back")
        half = ("--save-every", str(STEPS // 2))
        run(4, *sharded, "--checkpoints", there, *half, last=STEPS // 2)
        compare("from sharded stages", run(1, "--checkpoints", there, *half, "--resume", first=STEPS // 2 + 1), plain)
        run(1, "--checkpoints", back, *half, last=STEPS // 2)
        compare("to sharded stages", run(4, *sharded, "--checkpoints", back, *half, "--resume", first=STEPS // 2 + 1),
                plain)


main(*sys.argv[1:4])
