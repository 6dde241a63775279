#!/usr/bin/env python3
"""kill -9 of each kind of process of a training job: everything is gone within 5 s, and where dlaunch lives its first
lines of error name the rank, the signal and what the others were doing.

usage: kill_test.py DLAUNCH TRAIN_DIGITS
"""
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

from job_watch import leftovers, processes_with, rank_of, wait_until

DLAUNCH, TRAIN_DIGITS = sys.argv[1:3]
GONE_SECONDS = 5  # issue: "within 5 s everything is gone"
MARK = "COHORT_KILL_TEST=%d" % os.getpid()


def job_processes():
    return processes_with(MARK)


class Job:
    """Training under dlaunch on two simulated nodes with two ranks each, past its first epoch."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cohort-kill-test-")
        self.before = leftovers(self.folder.name)
        key, value = MARK.split("=")
        environment = dict(os.environ, TMPDIR=self.folder.name, **{key: value})
        self.process = subprocess.Popen(
            [DLAUNCH, "--simulate-nodes", "2", "--nproc-per-node", "2", "--", TRAIN_DIGITS, "--epochs", "100000"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        self.output = {self.process.stdout: b"", self.process.stderr: b""}
        if not wait_until(lambda: self.read() and b"epoch  1" in self.output[self.process.stdout], 90):
            raise AssertionError("training did not start:\n" + self.text())

    def read(self, seconds=0.05):
        open_streams = [stream for stream in self.output if not stream.closed]
        for stream in select.select(open_streams, [], [], seconds)[0]:
            chunk = os.read(stream.fileno(), 65536)
            self.output[stream] += chunk
            if not chunk:
                stream.close()
        return True

    def errors(self):
        return self.output[self.process.stderr].decode(errors="replace")

    def text(self):
        return self.output[self.process.stdout].decode(errors="replace") + "\n--- stderr\n" + self.errors()

    def ranks(self):
        return {rank_of(pid): pid for pid in job_processes() if rank_of(pid) is not None}

    def agents(self):
        return sorted(pid for pid, command in job_processes().items() if " agent" in command)

    def finish(self, what):
        """Waits for the end and checks that nothing stayed."""
        start = time.monotonic()

        def over():
            self.read(0.01)
            return self.process.poll() is not None and not job_processes()

        if not wait_until(over, GONE_SECONDS):
            left = job_processes()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError("%s: after %d s still there: %s\n%s" % (what, GONE_SECONDS, left, self.text()))
        seconds = time.monotonic() - start
        wait_until(lambda: self.read() and all(stream.closed for stream in self.output), 2)
        # Other tests' shared memory may come and go meanwhile: only what stays was left.
        wait_until(lambda: leftovers(self.folder.name) <= self.before, GONE_SECONDS)
        left = leftovers(self.folder.name) - self.before
        assert not left, "%s left files: %s" % (what, left)
        self.folder.cleanup()
        print("%s: all gone after %.2f s, exit status %d" % (what, seconds, self.process.returncode))


def expect(condition, message, job):
    if not condition:
        raise AssertionError(message + "\n" + job.text())


def kill_rank(rank):
    job = Job()
    victim = job.ranks()[rank]
    os.kill(victim, signal.SIGKILL)
    job.finish("kill -9 of rank %d" % rank)
    head = "\n".join(job.errors().splitlines()[:12])
    expect(re.search(r"rank %d\b" % rank, head) and str(victim) in head and "SIGKILL" in head,
           "the first lines do not name rank %d (pid %d) and SIGKILL" % (rank, victim), job)
    for other in set(range(4)) - {rank}:
        # After the last lines of the victim, of which there may be twenty.
        expect(re.search(r"^    rank %d \(node" % other, job.errors(), re.M),
               "nothing says what rank %d was doing" % other, job)
    expect(job.process.returncode == 137, "exit status %d, expected 137" % job.process.returncode, job)


def kill_agent(index):
    job = Job()
    agents = job.agents()
    expect(len(agents) >= 2, "found no agents: %s" % job_processes(), job)
    os.kill(agents[index], signal.SIGKILL)
    job.finish("kill -9 of agent %d" % index)
    head = "\n".join(job.errors().splitlines()[:12])
    expect("node" in head and "agent" in head, "the first lines do not name the node whose agent was killed", job)
    expect(job.process.returncode != 0, "exit status 0", job)


def kill_dlaunch():
    job = Job()
    os.kill(job.process.pid, signal.SIGKILL)
    job.finish("kill -9 of dlaunch")


def interrupt(number, expected):
    job = Job()
    job.process.send_signal(number)
    job.finish("%s to dlaunch" % signal.Signals(number).name)
    expect(job.process.returncode == expected, "exit status %d, expected %d" % (job.process.returncode, expected), job)


def main():
    for rank in (0, 3):
        kill_rank(rank)
    for index in (0, -1):
        kill_agent(index)
    kill_dlaunch()
    interrupt(signal.SIGINT, 130)
    interrupt(signal.SIGTERM, 143)
    for pid in job_processes():
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
