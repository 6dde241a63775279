"""Training on digits under dlaunch, whose end and whose weights are looked at."""
import os
import signal
import subprocess
import threading

from job_watch import processes_with, wait_until

SECONDS = 120


def read_all(path):
    with open(path, "rb") as file:
        return file.read()


class Run:
    """A job that leaves its weights in FOLDER/NAME.pt, its checkpoints in FOLDER/NAME, and `mark` in the environment of
    its processes; goes on from those checkpoints where there are any."""

    def __init__(self, command, arguments, folder, name, mark):
        self.weights = os.path.join(folder, name + ".pt")
        key, value = mark.split("=")
        self.process = subprocess.Popen(
            command + ["--"] + arguments + ["--save", self.weights, "--checkpoints", os.path.join(folder, name),
                                            "--resume"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
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

    def wait_for_epoch(self, epoch, epochs):
        self.expect(wait_until(lambda: "epoch  %d/%d" % (epoch, epochs) in self.text, SECONDS),
                    "training did not come to the end of epoch %d" % epoch)

    def finish(self, status=0):
        self.expect(wait_until(lambda: self.process.poll() is not None, SECONDS), "training did not end")
        self.reader.join()
        self.expect(self.process.returncode == status, "exit status %d" % self.process.returncode)


def end_all(runs, mark):
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)
    for run in runs:
        run.process.wait()
        run.reader.join()
