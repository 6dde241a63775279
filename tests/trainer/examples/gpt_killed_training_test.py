#!/usr/bin/env python3
"""train_gpt killed at a random moment after its first checkpoint goes on over another mesh: each later step's loss and
gradient norm are those of a run that nothing disturbed.

usage: gpt_killed_training_test.py DLAUNCH TRAIN_GPT FOLDER-OF-JOB-TESTS [SEED]
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

DLAUNCH, TRAIN_GPT = sys.argv[1:3]
sys.path.insert(0, sys.argv[3])
from job_watch import kill_at_once, processes_with, rank_of, wait_until  # noqa: E402

TOLERANCE = 1e-4
SAVE_EVERY = 3
MODEL = ["--save-every", str(SAVE_EVERY), "--log-every", "1", "--batch-size", "12", "--layers", "3", "--width", "32",
         "--context", "17", "--sample", "0", "--tie-embeddings", "--dropout", "0.1"]
MESHES = {"single": (1, []),
          "ddp": (2, ["--mesh", "replicate=2"]),
          "fsdp": (3, ["--mesh", "shard=3"]),
          "hsdp": (4, ["--mesh", "replicate=2,shard=2"]),
          "tensor": (2, ["--mesh", "tensor=2", "--sequence-parallel"]),
          "pipeline": (3, ["--mesh", "pipeline=3", "--micro-batches", "4"]),
          "composed": (4, ["--mesh", "pipeline=2,tensor=2", "--micro-batches", "3"]),
          "sharded stages": (4, ["--mesh", "pipeline=2,shard=2", "--schedule", "zbv", "--micro-batches", "3"])}
LINE = re.compile(r"step +(\d+)/\d+ +loss ([\d.]+) +gradient norm ([\d.]+)")


def command(name, last, *options):
    ranks, mesh = MESHES[name]
    return [DLAUNCH, "--nproc-per-node", str(ranks), "--", TRAIN_GPT, *MODEL, *mesh, "--steps", str(last), *options]


def steps(text):
    return {int(step): (float(loss), float(norm)) for step, loss, norm in LINE.findall(text)}


def run(*arguments):
    done = subprocess.run(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
                          check=False)
    if done.returncode != 0:
        sys.exit("%s: exit status %d\n%s" % (" ".join(map(str, arguments)), done.returncode, done.stdout))
    return steps(done.stdout)


def kill_within(name, folder, whole_job, mark, dice):
    """Trains until a random moment, and kills a rank or all processes of the job. Returns what was printed."""
    key, value = mark.split("=")
    last = dice.randrange(SAVE_EVERY + 1, 20)
    with open(folder + ".log", "w", encoding="utf-8") as log:
        job = subprocess.Popen(command(name, 1000000, "--checkpoints", folder), stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, env=dict(os.environ, **{key: value}))

    def text():
        with open(log.name, encoding="utf-8") as file:
            return file.read()

    def goes_on():  # the first checkpoint may still be on its way
        saved = [each for each in os.listdir(folder) if each.startswith("step-") and "." not in each]
        return max(steps(text()), default=0) >= last and saved

    try:
        if not wait_until(goes_on, 120):
            sys.exit("%s did not train\n%s" % (name, text()))
        time.sleep(dice.random() * 0.05)  # the random moment
        processes = processes_with(mark)
        ranks = sorted(pid for pid in processes if rank_of(pid) is not None)
        kill_at_once(processes if whole_job else [dice.choice(ranks)])
        job.wait(60)
    finally:
        kill_at_once(processes_with(mark))
        job.wait()
    return text()


def trial(number, dice):
    first, second = dice.sample(sorted(MESHES), 2)
    whole_job = dice.random() < 0.5
    with tempfile.TemporaryDirectory(prefix="cohort-gpt-killed-") as parent:
        folder = os.path.join(parent, "checkpoints")
        os.mkdir(folder)
        before = steps(kill_within(first, folder, whole_job, "COHORT_GPT_KILLED=%d.%d" % (os.getpid(), number), dice))
        end = max(before) + 4
        after = run(second, end, "--checkpoints", folder, "--resume")
    what = "trial %d: %s killed (%s) at step %d, then %s" % (
        number, first, "all processes" if whole_job else "one rank", max(before), second)
    begin = min(after, default=0)
    if begin <= SAVE_EVERY or sorted(after) != list(range(begin, end + 1)):
        sys.exit("%s: it went on with the steps %s" % (what, sorted(after)))
    undisturbed = run("single", end)
    for step, mine in [*before.items(), *after.items()]:
        for name, a, b in zip(("loss", "gradient norm"), mine, undisturbed[step]):
            if abs(a - b) > TOLERANCE * max(1, abs(b)):
                sys.exit("%s: %s of step %d is %s, undisturbed %s" % (what, name, step, a, b))
    print("%s: steps %d to %d are the undisturbed run's" % (what, begin, end), flush=True)


def main():
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 30)
    print("seed %d" % seed, flush=True)
    dice = random.Random(seed)
    for number in range(3):
        trial(number, dice)


main()
