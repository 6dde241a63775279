#!/usr/bin/env python3
"""A process is killed, or a node killed or frozen, under --on-failure continue: every agent knows of it in time.

usage: loss_trials.py DLAUNCH LOSS_RANKS [--trials N] [--seed S]

A job of three simulated nodes with two ranks each, which wait for their agents' word. Prints the distribution of the
times from the signal until the last agent knew, and of all agents, beside what is promised. Fails when one is not
told, is told wrong ranks, or is told later than ten times the promise.
"""
import argparse
import random
import re
import signal
import sys
import time

from fault_trials import print_table
from hurt_job import HurtJob

NODES = 3
RANKS = 6
SLACK = 10
PROMISES = {"process killed": 200, "node killed": 3500, "node frozen": 3500}  # milliseconds
LOST = re.compile(r"^lost (\d+) ([\d ]+)$")


def run(arguments, number):
    """The kind, and for each other node the milliseconds until its agent knew."""
    choose = random.Random(arguments.seed * 1_000_003 + number)
    kind = list(PROMISES)[number % len(PROMISES)]
    # Without --standby the job ends with its first node, which hosts the rendezvous.
    node = choose.randrange(1, NODES)
    per_node = RANKS // NODES
    of_node = list(range(node * per_node, (node + 1) * per_node))
    lost = [choose.randrange(RANKS)] if kind == "process killed" else of_node
    title = "trial %d (seed %d): %s, rank(s) %s" % (number, arguments.seed, kind, lost)
    with HurtJob(title, arguments.dlaunch, arguments.loss_ranks, (), RANKS, NODES) as job:
        job.wait_ready()
        time.sleep(choose.uniform(0, 1))  # the random moment
        if kind == "process killed":
            job.signal(lost[0], signal.SIGKILL)
        else:
            job.signal_node(node, signal.SIGKILL if kind == "node killed" else signal.SIGSTOP)
        job.wait_end()
        soonest = {}
        for rank in sorted(set(range(RANKS)) - set(lost)):
            news = [match for match in map(LOST.match, job.lines[rank]) if match]
            if not news or sorted(map(int, news[0].group(2).split())) != lost:
                job.fail("rank %d was not told of %s" % (rank, lost))
            milliseconds = (int(news[0].group(1)) - job.began) / 1e6
            soonest[rank // per_node] = min(milliseconds, soonest.get(rank // per_node, milliseconds))
        if max(soonest.values()) > SLACK * PROMISES[kind]:
            job.fail("an agent knew after %.0f ms" % max(soonest.values()))
        return kind, list(soonest.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("loss_ranks")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    each, last = [], []
    began = time.monotonic()
    for number in range(arguments.trials):
        kind, times = run(arguments, number)
        each += [(kind, milliseconds) for milliseconds in times]
        last.append((kind, max(times)))
        if sys.stderr.isatty():
            print("\r%d of %d" % (number + 1, arguments.trials), end="", file=sys.stderr)
    took = "%d trials in %.0f s; " % (arguments.trials, time.monotonic() - began)
    print_table(each, PROMISES, took + "milliseconds from the signal until an agent knew")
    print_table(last, PROMISES, "until all agents of the job knew")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
