#!/usr/bin/env python3
"""Ranks are killed or stopped from outside at random moments of a running mix, and the survivors shrink and go on
computing right results, all in the same group: one rank, two at once, a second during the shrink; rank 0 too; on one
node and on two.

usage: shrink_kill_test.py DLAUNCH SHRINK_RANKS [--trials N] [--seed S] [--nodes N]
"""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from job_watch import leftovers, processes_with, rank_of, wait_until

RANKS = 5
SCENARIOS = ("one", "two at once", "second during shrink", "stopped", "one stopped, one killed")
LINE = re.compile(r"^\[(\d+)\] (.*)$")


class Trial:
    """One job of five ranks, and the end of one or two of them."""

    def __init__(self, arguments, number):
        self.arguments = arguments
        choose = random.Random(arguments.seed * 1_000_003 + number)
        self.number = number
        self.scenario = SCENARIOS[number % len(SCENARIOS)]
        self.nodes = arguments.nodes
        self.victims = choose.sample(range(RANKS), 1 if self.scenario in ("one", "stopped") else 2)
        if number % 3 == 0 and 0 not in self.victims:
            self.victims[0] = 0
        self.delay = choose.uniform(0, 0.1)
        self.second_delay = choose.choice((0, choose.uniform(0, 0.003), choose.uniform(0, 0.05)))
        self.mark = "COHORT_SHRINK_TRIAL=%d.%d" % (os.getpid(), number)
        self.lines = {rank: [] for rank in range(RANKS)}
        self.output = []

    def describe(self):
        return "trial %d (seed %d): %s, ranks %s, %d node(s)" % (
            self.number, self.arguments.seed, self.scenario, self.victims, self.nodes)

    def read(self, stream):
        for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            self.output.append(text)
            match = LINE.match(text)
            if match and int(match.group(1)) in self.lines:
                self.lines[int(match.group(1))].append(match.group(2))

    def fail(self, what):
        raise AssertionError("%s: %s\n%s" % (self.describe(), what, "\n".join(self.output)))

    def run(self):
        placement = ["--nproc-per-node", str(RANKS)]
        if self.nodes == 2:
            placement = ["--simulate-nodes", "2", "--nproc-per-node", "3"]
            self.lines = {rank: [] for rank in range(6)}
        survivors = sorted(set(self.lines) - set(self.victims))
        with tempfile.TemporaryDirectory(prefix="cohort-shrink-trial-") as folder:
            before = leftovers(folder)
            name, value = self.mark.split("=")
            process = subprocess.Popen(
                [self.arguments.dlaunch, "--on-failure", "continue", *placement, "--", self.arguments.shrink_ranks,
                 str(self.number), str(len(survivors))],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(os.environ, TMPDIR=folder, **{name: value}))
            readers = [threading.Thread(target=self.read, args=(stream,)) for stream in (process.stdout, process.stderr)]
            for reader in readers:
                reader.start()
            try:
                seconds = self.hurt(process)
            finally:
                for pid in processes_with(self.mark):
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                for reader in readers:
                    reader.join()
                process.stdout.close()
                process.stderr.close()
            self.judge(survivors)
            # Other jobs' shared memory may come and go meanwhile: only what stays was left.
            if not wait_until(lambda: leftovers(folder) <= before, 5):
                self.fail("files are left: %s" % (leftovers(folder) - before))
        return seconds

    def hurt(self, process):
        if not wait_until(lambda: all("ready" in lines for lines in self.lines.values()), 60):
            self.fail("the ranks did not come up")
        pids = {rank_of(pid): pid for pid in processes_with(self.mark) if rank_of(pid) is not None}
        time.sleep(self.delay)  # the random moment
        began = time.monotonic()
        stops = self.scenario in ("stopped", "one stopped, one killed")
        os.kill(pids[self.victims[0]], signal.SIGSTOP if stops else signal.SIGKILL)
        if self.scenario == "second during shrink":
            wait_until(lambda: any("shrinking" in lines for lines in self.lines.values()), 10)
            time.sleep(self.second_delay)
        if len(self.victims) == 2:
            os.kill(pids[self.victims[1]], signal.SIGKILL)
        if not wait_until(lambda: process.poll() is not None, 60):
            self.fail("the job did not end")
        return time.monotonic() - began

    def judge(self, survivors):
        expected = "goes on among " + " ".join(str(rank) for rank in survivors)
        for rank in survivors:
            if expected not in self.lines[rank]:
                self.fail("rank %d does not say '%s'" % (rank, expected))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("shrink_ranks")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 2))
    arguments = parser.parse_args()
    took = {}
    for number in range(arguments.trials):
        trial = Trial(arguments, number)
        took.setdefault(trial.scenario, []).append(trial.run())
    print("%d trials on %d node(s); seconds from the first signal to the job's end, after 40 operations of the rest:" %
          (arguments.trials, arguments.nodes))
    for scenario, seconds in took.items():
        seconds.sort()
        print("%-24s %4d trials, median %.2f, longest %.2f" %
              (scenario, len(seconds), seconds[len(seconds) // 2], seconds[-1]))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
