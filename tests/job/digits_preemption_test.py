#!/usr/bin/env python3
"""Training on digits with four ranks on two nodes is preempted twice, by the signals that schedulers send: each time all
ranks stop before the same step and dlaunch ends with 75. The third run ends it, with the bits of the weights of a run
that nothing has disturbed.

usage: digits_preemption_test.py DLAUNCH DIGITS_TRAINER
"""
import json
import os
import re
import signal
import sys
import tempfile

from digits_run import SECONDS, Run, end_all, read_all
from job_watch import wait_until

DLAUNCH, DIGITS_TRAINER = sys.argv[1:3]
EPOCHS = 40  # of some 0.1 s: the signal takes effect within a few
PREEMPTED = 75
MARK = "COHORT_DIGITS_PREEMPTION_TEST=%d" % os.getpid()


class PreemptedRun(Run):
    def __init__(self, folder, name, part):
        self.logs = os.path.join(folder, "%s-logs-%d" % (name, part))
        super().__init__([DLAUNCH, "--simulate-nodes", "2", "--nproc-per-node", "2", "--log-dir", self.logs],
                         [DIGITS_TRAINER, "--epochs", str(EPOCHS)], folder, name, MARK)

    def preempt(self, number):
        """Sends the signal when an epoch is over; returns the step before which all ranks stopped."""
        self.expect(wait_until(lambda: re.search(r"epoch +\d+/%d" % EPOCHS, self.text), SECONDS),
                    "training did not come to the end of an epoch")
        self.process.send_signal(number)
        self.finish(PREEMPTED)
        with open(os.path.join(self.logs, "report.json")) as file:
            report = json.load(file)["preempted"]
        self.expect(report["signal"] == signal.Signals(number).name, "report.json: %s" % report)
        said = re.search(r"\[0\] preempted before step (\d+) of (\d+), saved", self.text)
        self.expect(said is not None and int(said[1]) == report["step"], "rank 0 stopped elsewhere")
        self.expect(not os.path.exists(self.weights), "it saved weights as if it had ended")
        return report["step"]


def main():
    with tempfile.TemporaryDirectory(prefix="cohort-digits-preemption-") as folder:
        runs = []
        try:
            runs.append(PreemptedRun(folder, "undisturbed", 1))
            runs[-1].finish(0)
            expected = read_all(runs[-1].weights)
            steps = []
            for part, number in enumerate([signal.SIGUSR1, signal.SIGTERM], start=1):
                runs.append(PreemptedRun(folder, "preempted", part))
                steps.append(runs[-1].preempt(number))
                runs[-1].expect(("[0] resumed " in runs[-1].text) == (part > 1), "it began elsewhere")
            runs.append(PreemptedRun(folder, "preempted", 3))
            runs[-1].finish(0)
            runs[-1].expect("[0] resumed %s/preempted/step-%08d\n" % (folder, steps[1]) in runs[-1].text,
                            "it did not go on from where it was preempted")
            weights = read_all(runs[-1].weights)
            runs[-1].expect(steps[0] < steps[1], "steps %s" % steps)
            runs[-1].expect(weights == expected, "the final weights differ from those of the undisturbed run")
            print("preempted before steps %d and %d, and ended with the same %d bytes of weights"
                  % (steps[0], steps[1], len(weights)))
        finally:
            end_all(runs, MARK)


if __name__ == "__main__":
    main()
