#!/usr/bin/env python3
"""Training on digits with eight ranks on two nodes loses a rank by SIGKILL, is started again and goes on from its
checkpoint: its final weights have the bits of those of a run that nothing has disturbed.

usage: digits_restart_test.py DLAUNCH TRAIN_DIGITS
"""
import os
import signal
import sys
import tempfile

from digits_run import Run, end_all, read_all
from job_watch import processes_with, rank_of

DLAUNCH, TRAIN_DIGITS = sys.argv[1:3]
EPOCHS = 4
MARK = "COHORT_DIGITS_RESTART_TEST=%d" % os.getpid()


def start(folder, name):
    return Run([DLAUNCH, "--simulate-nodes", "2", "--nproc-per-node", "4", "--max-restarts", "1", "--grace", "1"],
               [TRAIN_DIGITS, "--epochs", str(EPOCHS)], folder, name, MARK)


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
            os.kill(next(pid for pid in processes_with(MARK) if rank_of(pid) == 5), signal.SIGKILL)
            killed.finish()
            weights = read_all(killed.weights)
            killed.expect("restart 1 of 1 of all ranks" in killed.text, "it was not restarted")
            killed.expect("[0] resumed " in killed.text, "it began anew instead of going on from its checkpoint")
            killed.expect(weights == expected, "the final weights differ from those of the undisturbed run")
            print("killed in epoch 3 of %d, resumed, and ended with the same %d bytes of weights"
                  % (EPOCHS, len(weights)))
        finally:
            end_all(runs, MARK)


if __name__ == "__main__":
    main()
