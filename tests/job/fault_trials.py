#!/usr/bin/env python3
"""kill -9 and SIGSTOP of one rank at random moments of a running mix of collectives, under --on-failure continue: every
survivor gets an error that names the rank, in time, and nothing is left behind.

usage: fault_trials.py DLAUNCH FAULT_RANKS [--trials N] [--seed S] [--at-once N]

Prints the distribution of the times from the signal to the error in each survivor, beside what is promised. Fails when a
survivor has no error, an error does not name the rank, comes later than ten times the promise, or anything is left.
"""
import argparse
import concurrent.futures
import random
import re
import signal
import sys
import time

from hurt_job import HurtJob

RANKS = 4
SLACK = 10
# Milliseconds from the signal to a survivor's error.
PROMISES = {"killed, same host": 100, "killed, other host": 500, "stopped": 3500}
ERROR = re.compile(r"^error (\d+) (.*)$")


class Trial:
    """One job of four ranks, on one node or two, and one fault."""

    def __init__(self, arguments, number):
        self.arguments = arguments
        self.number = number
        choose = random.Random(arguments.seed * 1_000_003 + number)
        self.stops = number % 2 == 1
        self.nodes = choose.choice((1, 2))
        self.victim = choose.randrange(RANKS)
        self.delay = choose.uniform(0, 0.1)
        self.wrapped = choose.random() < 0.25  # the program is the child of a shell
        self.job = None

    def describe(self):
        return "trial %d (seed %d): %s of rank %d, %d node(s)%s" % (
            self.number, self.arguments.seed, "SIGSTOP" if self.stops else "SIGKILL", self.victim, self.nodes,
            ", started by a shell" if self.wrapped else "")

    def run(self):
        """The latencies: [(kind, milliseconds)]."""
        wrapper = ["sh", "-c", '"$0" "$@"; exit $?'] if self.wrapped else []
        with HurtJob(self.describe(), self.arguments.dlaunch, self.arguments.fault_ranks, (str(self.number),), RANKS,
                     self.nodes, wrapper) as job:
            self.job = job
            job.wait_ready()
            time.sleep(self.delay)  # the random moment
            job.signal(self.victim, signal.SIGSTOP if self.stops else signal.SIGKILL)
            job.wait_end()
            return self.judge(job)

    def end(self):
        """Ends the job if it still runs; from another thread."""
        if self.job:
            self.job.end()

    def judge(self, job):
        figures = []
        for rank in sorted(set(range(RANKS)) - {self.victim}):
            errors = [match for match in map(ERROR.match, job.lines[rank]) if match]
            if not errors:
                job.fail("rank %d has no error" % rank)
            heard, text = int(errors[0].group(1)), errors[0].group(2)
            if not re.search(r"\brank %d\b" % self.victim, text):
                job.fail("the error of rank %d does not name rank %d" % (rank, self.victim))
            per_node = RANKS // self.nodes
            same_host = rank // per_node == self.victim // per_node
            kind = "stopped" if self.stops else "killed, same host" if same_host else "killed, other host"
            milliseconds = (heard - job.began) / 1e6
            if milliseconds > SLACK * PROMISES[kind]:
                job.fail("rank %d got the error after %.0f ms" % (rank, milliseconds))
            figures.append((kind, milliseconds))
        return figures


def at(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def print_table(figures, promises, title):
    """figures: [(kind, milliseconds)]."""
    print(title)
    print("%-20s %7s %8s %8s %8s %8s %8s %8s %s" %
          ("", "times", "min", "median", "90 %", "99 %", "max", "promise", "within"))
    for kind, promise in promises.items():
        values = sorted(value for of_kind, value in figures if of_kind == kind)
        if not values:
            continue
        within = 100.0 * sum(value <= promise for value in values) / len(values)
        print("%-20s %7d %8.1f %8.1f %8.1f %8.1f %8.1f %8d %.2f %%" %
              (kind, len(values), values[0], at(values, 0.5), at(values, 0.9), at(values, 0.99), values[-1], promise,
               within))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("fault_ranks")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4, help="jobs with a stopped rank that run side by side")
    arguments = parser.parse_args()
    trials = [Trial(arguments, number) for number in range(arguments.trials)]
    began = time.monotonic()
    figures = []
    # Killed ranks one job after another; stopped ones wait for seconds, which needs no CPU.
    for trial in trials:
        if not trial.stops:
            figures += trial.run()
            if sys.stderr.isatty():
                print("\r%d of %d" % (trial.number + 1, arguments.trials), end="", file=sys.stderr)
    pool = concurrent.futures.ThreadPoolExecutor(arguments.at_once)
    try:
        for done in pool.map(Trial.run, [trial for trial in trials if trial.stops]):
            figures += done
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for trial in trials:
            trial.end()
    print_table(figures, PROMISES, "%d trials in %.0f s; milliseconds from the signal to a survivor's error" %
                (arguments.trials, time.monotonic() - began))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
