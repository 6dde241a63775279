#!/usr/bin/env python3
"""Training on digits with eight ranks on two nodes loses a rank by SIGKILL, is started again and goes on from its
checkpoint: its final weights have the bits of those of a run that nothing has disturbed.

usage: digits_restart_test.py DLAUNCH TRAIN_DIGITS
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading

from job_watch import processes_with, rank_of, wait_until

DLAUNCH, TRAIN_DIGITS = sys.argv[1:3]
EPOCHS = 4
SECONDS = 120
MARK = "COHORT_DIGITS_RESTART_TEST=%d" % os.getpid()


def command(weights, checkpoints):
    return [DLAUNCH, "--simulate-nodes", "2", "--nproc-per-node", "4", "--max-restarts", "1", "--grace", "1", "--",
            TRAIN_DIGITS, "--epochs", str(EPOCHS), "--save", weights, "--checkpoints", checkpoints, "--resume"]


def read_all(path):
    with open(path, "rb") as file:
        return file.read()


class Run:
    def __init__(self, folder, name):
        self.weights = os.path.join(folder, name + ".pt")
        key, value = MARK.split("=")
        self.process = subprocess.Popen(command(self.weights, os.path.join(folder, name)), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env=dict(os.environ, **{key: value}))
        self.text = ""
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.text += line.decode(errors="replace")

    def expect(self, condition, message):
        if not condition:
            raise AssertionError(message + "\n" + self.text)

    def finish(self):
        self.expect(wait_until(lambda: self.process.poll() is not None, SECONDS), "training did not end")
        self.reader.join()
        self.expect(self.process.returncode == 0, "exit status %d" % self.process.returncode)
        return read_all(self.weights)


def main():
    with tempfile.TemporaryDirectory(prefix="cohort-digits-restart-") as folder:
        runs = []
        try:
            runs.append(Run(folder, "undisturbed"))
            expected = runs[-1].finish()
            runs[-1].expect("restart" not in runs[-1].text, "it was disturbed")
            runs.append(Run(folder, "killed"))
            killed = runs[-1]
            killed.expect(wait_until(lambda: "epoch  2/%d" % EPOCHS in killed.text, SECONDS), "training did not start")
            os.kill(next(pid for pid in processes_with(MARK) if rank_of(pid) == 5), signal.SIGKILL)
            weights = killed.finish()
            killed.expect("restart 1 of 1 of all ranks" in killed.text, "it was not restarted")
            killed.expect("[0] resumed " in killed.text, "it began anew instead of going on from its checkpoint")
            killed.expect(weights == expected, "the final weights differ from those of the undisturbed run")
            print("killed in epoch 3 of %d, resumed, and ended with the same %d bytes of weights"
                  % (EPOCHS, len(weights)))
        finally:
            for pid in processes_with(MARK):
                os.kill(pid, signal.SIGKILL)
            for run in runs:
                run.process.wait()
                run.reader.join()


if __name__ == "__main__":
    main()
