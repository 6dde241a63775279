#!/usr/bin/env python3
"""train_gpt on meshes that have every axis, where a rank is killed: all others name it and its signal, also those that
wait for a living neighbour.

usage: gpt_killed_rank_test.py DLAUNCH TRAIN_GPT FOLDER-OF-JOB-TESTS [all]

all: each rank in turn. Otherwise two ranks of each mesh, by chance.
"""
import random
import re
import signal
import sys

DLAUNCH, TRAIN_GPT = sys.argv[1:3]
sys.path.insert(0, sys.argv[3])
from hurt_job import START_SECONDS, HurtJob  # noqa: E402
from job_watch import wait_until  # noqa: E402

# Ten times what DESIGN.md promises for ranks on other hosts.
LONGEST_SECONDS = 5
MODEL = ["--steps", "100000", "--log-every", "1", "--batch-size", "8", "--layers", "2", "--width", "16", "--context",
         "9", "--sample", "0"]


def kill(mesh, ranks, victim):
    with HurtJob("rank %d of %s" % (victim, " ".join(mesh)), DLAUNCH, TRAIN_GPT, [*MODEL, "--mesh", *mesh],
                 ranks=ranks, nodes=2) as job:
        if not wait_until(lambda: any(line.startswith("step    3/") for line in job.lines[0]), START_SECONDS):
            job.fail("training did not start")
        job.find_ranks()
        job.signal(victim, signal.SIGKILL)
        others = [rank for rank in job.ranks if rank != victim]
        named = re.compile(r"rank %d \(.*SIGKILL" % victim)

        def unaware():
            return [rank for rank in others if not any(named.search(line) for line in job.lines[rank])]

        if not wait_until(lambda: not unaware(), LONGEST_SECONDS):
            job.fail("the ranks %s did not name rank %d within %d s" % (unaware(), victim, LONGEST_SECONDS))
        job.wait_end()


def main():
    ranks = 8
    for mesh in (("pipeline=2,shard=2,tensor=2", "--micro-batches", "2"),
                 ("replicate=2,shard=2,tensor=2", "--sequence-parallel")):
        victims = list(range(ranks)) if sys.argv[4:] == ["all"] else random.sample(range(ranks), 2)
        for victim in victims:
            kill(mesh, ranks, victim)
        print("%s: the ranks %s were named by all others" % (mesh[0], victims), flush=True)


main()
