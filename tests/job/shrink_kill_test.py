#!/usr/bin/env python3
"""Ranks are killed or stopped from outside at random moments of a running mix, and the survivors shrink and go on
computing right results, all in the same group: one rank, two at once, a second during the shrink; rank 0 too; on one
node and on two.

usage: shrink_kill_test.py DLAUNCH SHRINK_RANKS [--trials N] [--seed S] [--nodes N]
"""
import argparse
import random
import signal
import sys
import time

from hurt_job import HurtJob
from job_watch import wait_until

# UCX 1.13 aborts a process that answers a first connection whose other end is killed in the same millisecond
# (comm/transport/ucx/README.md): no survivor of ours then. Such trials are counted, and may be one in fifty.
UCX_ABORT = "UCP_WIREUP_MSG_EP_REMOVED"
SCENARIOS = ("one", "two at once", "second during shrink", "stopped", "one stopped, one killed")


class Trial:
    """One job of five ranks, or of three on each of two nodes, and the end of one or two of them."""

    def __init__(self, arguments, number):
        self.arguments = arguments
        choose = random.Random(arguments.seed * 1_000_003 + number)
        self.number = number
        self.ranks = 5 if arguments.nodes == 1 else 6
        self.scenario = SCENARIOS[number % len(SCENARIOS)]
        self.victims = choose.sample(range(self.ranks), 1 if self.scenario in ("one", "stopped") else 2)
        if number % 3 == 0 and 0 not in self.victims:
            self.victims[0] = 0
        self.delay = choose.uniform(0, 0.1)
        self.second_delay = choose.choice((0, choose.uniform(0, 0.003), choose.uniform(0, 0.05)))

    def describe(self):
        return "trial %d (seed %d): %s, ranks %s, %d node(s)" % (
            self.number, self.arguments.seed, self.scenario, self.victims, self.arguments.nodes)

    def run(self):
        """Seconds from the first signal to the job's end; None where UCX itself ended a survivor."""
        survivors = sorted(set(range(self.ranks)) - set(self.victims))
        with HurtJob(self.describe(), self.arguments.dlaunch, self.arguments.shrink_ranks,
                     (str(self.number), str(len(survivors))), self.ranks, self.arguments.nodes) as job:
            job.wait_ready()
            time.sleep(self.delay)  # the random moment
            stops = self.scenario in ("stopped", "one stopped, one killed")
            job.signal(self.victims[0], signal.SIGSTOP if stops else signal.SIGKILL)
            if self.scenario == "second during shrink":
                if not wait_until(lambda: any("shrinking" in lines for lines in job.lines.values()), 10):
                    job.fail("nobody shrinks")
                time.sleep(self.second_delay)
            if len(self.victims) == 2:
                job.signal(self.victims[1], signal.SIGKILL)
            seconds = job.wait_end()
            if any(UCX_ABORT in line for rank in survivors for line in job.lines[rank]):
                return None
            expected = "goes on among " + " ".join(str(rank) for rank in survivors)
            for rank in survivors:
                if expected not in job.lines[rank]:
                    job.fail("rank %d does not say '%s'" % (rank, expected))
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("shrink_ranks")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 2))
    arguments = parser.parse_args()
    took, void = {}, []
    for number in range(arguments.trials):
        trial = Trial(arguments, number)
        seconds = trial.run()
        if seconds is None:
            void.append(number)
        else:
            took.setdefault(trial.scenario, []).append(seconds)
    if void:
        print("UCX itself ended a survivor in %d trials: %s" % (len(void), void))
    if len(void) > max(1, arguments.trials // 50):
        raise AssertionError("UCX ended survivors in %d of %d trials" % (len(void), arguments.trials))
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
