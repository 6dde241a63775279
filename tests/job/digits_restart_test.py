#!/usr/bin/env python3
"""Training on digits with eight ranks on two nodes loses a rank by SIGKILL, or a whole node whose place a spare takes, is
started again and goes on from its checkpoint: its final weights have the bits of those of a run that nothing has
disturbed.

usage: digits_restart_test.py DLAUNCH DIGITS_TRAINER
"""
import os
import signal
import sys
import tempfile

from digits_run import Run, end_all, read_all
from job_watch import kill_at_once, parent_of, processes_with, rank_of

DLAUNCH, DIGITS_TRAINER = sys.argv[1:3]
EPOCHS = 4
MARK = "COHORT_DIGITS_RESTART_TEST=%d" % os.getpid()


def start(folder, name, nodes=("--simulate-nodes", "2")):
    return Run([DLAUNCH, *nodes, "--nproc-per-node", "4", "--max-restarts", "1", "--grace", "1"],
               [DIGITS_TRAINER, "--epochs", str(EPOCHS)], folder, name, MARK)


def pid_of(rank):
    return next(pid for pid in processes_with(MARK) if rank_of(pid) == rank)


def kill_node_of(rank):
    """Its agent and its ranks at one moment, as when the power fails."""
    agent = parent_of(pid_of(rank))
    doomed = [pid for pid in processes_with(MARK) if parent_of(pid) == agent] + [agent]
    kill_at_once(doomed)


def check(killed, expected, how):
    killed.finish()
    weights = read_all(killed.weights)
    killed.expect("restart 1 of 1 of all ranks" in killed.text, "it was not restarted")
    killed.expect("[0] resumed " in killed.text, "it began from the start instead of going on from its checkpoint")
    killed.expect(weights == expected, "the final weights differ from those of the undisturbed run")
    print("%s in epoch 3 of %d, resumed, and ended with the same %d bytes of weights" % (how, EPOCHS, len(weights)))


def main():
    with tempfile.TemporaryDirectory(prefix="cohort-digits-restart-") as folder:
        runs = []
        try:
            runs.append(start(folder, "undisturbed"))
            runs[-1].finish()
            expected = read_all(runs[-1].weights)
            runs[-1].expect("restart" not in runs[-1].text, "it was disturbed")
            runs.append(start(folder, "killed"))
            killed = runs[-1]
            killed.wait_for_epoch(2, EPOCHS)
            os.kill(pid_of(5), signal.SIGKILL)
            check(killed, expected, "killed")
            runs.append(start(folder, "node", ("--nnodes", "2", "--simulate-nodes", "3", "--spares", "1")))
            runs[-1].wait_for_epoch(2, EPOCHS)
            kill_node_of(5)
            check(runs[-1], expected, "lost a node")
        finally:
            end_all(runs, MARK)


if __name__ == "__main__":
    main()
