#!/usr/bin/env python3
"""A job of eight ranks on four nodes loses one of them, or a node whose place a spare takes: all begin again with the
ranks that they had. With --lose host that node is the one that hosts the rendezvous, for which another takes over.
Prints how long it takes from the kill until all are back in a barrier.

usage: restart_test.py DLAUNCH RESTART_RANKS [--lose rank|node|host] [--trials N]
"""
import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from job_watch import leftovers, processes_with, rank_of, wait_until

RANKS, NODES = 8, 4
PROMISED_SECONDS = 3
START_SECONDS = 60
GONE_SECONDS = 60  # no promise: a limit to the waiting
MET = re.compile(r"^\[(\d+)\] epoch (\d+) rank (\d+) of (\d+) on node (\d+) of (\d+) met$")


class Job:
    def __init__(self, options):
        lost_node = options.lose != "rank"
        self.mark = "COHORT_RESTART_TEST=%d.%d" % (os.getpid(), time.monotonic_ns())
        self.folder = tempfile.TemporaryDirectory(prefix="cohort-restart-test-")
        self.before = leftovers(self.folder.name)
        name, value = self.mark.split("=")
        nodes = ["--simulate-nodes", str(NODES + 1), "--spares", "1"] if lost_node else ["--simulate-nodes", str(NODES)]
        if options.lose == "host":
            nodes += ["--standby", "1"]
        self.process = subprocess.Popen(
            [options.dlaunch, *nodes, "--nproc-per-node", str(RANKS // NODES), "--max-restarts", "1", "--",
             options.program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ, TMPDIR=self.folder.name, **{name: value}))
        self.lines = []  # (seconds, text)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip("\n")))

    def text(self):
        return "\n".join("%.3f %s" % line for line in self.lines)

    def met(self, epoch):
        """The ranks that have met the others in that epoch: when, as which rank of how many, on which node of how many."""
        found = {}
        for at, text in list(self.lines):
            match = MET.match(text)
            if match and int(match.group(2)) == epoch:
                found[int(match.group(1))] = (at, tuple(int(match.group(i)) for i in (3, 4, 5, 6)))
        return found

    def victim(self, lose, rank):
        if lose == "rank":
            return next(pid for pid in processes_with(self.mark) if rank_of(pid) == rank)
        wanted = "--node=%d" % (rank // (RANKS // NODES))
        return next(pid for pid, command in processes_with(self.mark).items() if " agent " + wanted in command)

    def close(self):
        for pid in processes_with(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.reader.join()
        self.folder.cleanup()


def expect(condition, message, job):
    if not condition:
        raise AssertionError(message + "\n" + job.text())


def trial(options, rank):
    job = Job(options)
    try:
        expect(wait_until(lambda: len(job.met(1)) == RANKS, START_SECONDS), "the ranks did not meet", job)
        began = time.monotonic()
        os.kill(job.victim(options.lose, rank), signal.SIGKILL)
        expect(wait_until(lambda: len(job.met(2)) == RANKS, 10 * PROMISED_SECONDS),
               "not all ranks were back after %d s" % (10 * PROMISED_SECONDS), job)
        seconds = max(at for at, _ in job.met(2).values()) - began
        for number in range(RANKS):
            expected = (number, RANKS, number // (RANKS // NODES), NODES)
            expect(job.met(2)[number][1] == expected, "rank %d came back as %s" % (number, job.met(2)[number]), job)
        expect(wait_until(lambda: job.process.poll() is not None, GONE_SECONDS), "the job did not end", job)
        expect(job.process.returncode == 0, "exit status %d" % job.process.returncode, job)
        expect(wait_until(lambda: not processes_with(job.mark), GONE_SECONDS), "processes were left", job)
        expect(wait_until(lambda: leftovers(job.folder.name) <= job.before, GONE_SECONDS), "files were left", job)
        return seconds
    finally:
        job.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dlaunch")
    parser.add_argument("program")
    parser.add_argument("--lose", choices=("rank", "node", "host"), default="rank")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print("seed %d" % options.seed)
    random_numbers = random.Random(options.seed)
    # The first node hosts the rendezvous, without which the job goes on only by --standby.
    per_node = RANKS // NODES
    victims = {"rank": (0, RANKS), "node": (per_node, RANKS), "host": (0, per_node)}[options.lose]
    seconds = sorted(trial(options, random_numbers.randrange(*victims)) for _ in range(options.trials))
    print("from the kill of a %s until all %d ranks were in a barrier again: median %.2f s, longest %.2f s "
          "(promised: %d s)" % (options.lose, RANKS, statistics.median(seconds), seconds[-1], PROMISED_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
