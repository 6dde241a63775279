#!/usr/bin/env python3
"""The score of `dlaunch why`: jobs of four ranks in which one is slow in a known way.

usage: why_trials.py DLAUNCH WHY_RANKS [--count N] [--seed S] [--kind KIND] [--show]

Each kind gets its share of the trials. The rank, its steps, the length of the slow-down and the number of nodes are drawn
from the seed. Prints a table: how often the right rank was named, a wrong one, or none, and how often the reason was
right. A third of the kinds is held out: the verdict must not be tuned by them. Fails below 95 % right ranks, above 1 %
wrong ones, and below 80 % right reasons. 200 trials take about 25 minutes on an idle machine.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
START_SECONDS = 60
END_SECONDS = 300
THROTTLED_SECONDS = 1.5
RIGHT, WRONG, REASONS = 95.0, 1.0, 80.0
DEAD_LINK = ("tbf", "rate", "1kbit", "burst", "1", "limit", "1")  # a queue that takes no packet

# A rank that others keep from its CPU computes all the same.
COMPUTES = ("computes", "waits for a CPU")
GARBAGE = """
import array, gc, sys, time
import dlaunch
victim, when, objects, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
gc.disable()
world = dlaunch.init()
numbers = array.array("f", [1.0] * 16)
kept = [[i] for i in range(objects)] if world.rank == victim else []
world.all_reduce(numbers)
for step in range(steps):
    end = time.thread_time() + 0.004
    while time.thread_time() < end:
        pass
    if kept and (when == "every" or (when == "some" and step % 8 == 7) or when == str(step)):
        gc.collect()
    world.all_reduce(numbers)
    world.barrier()
dlaunch.finalize()
"""


class Skip(Exception):
    pass


class Throttled:
    """A control group with a small share of CPU time, of either version."""

    def __init__(self):
        name = f"cohort-why-trials-{os.getpid()}"
        problems = []
        for parent, limit, value in (("/sys/fs/cgroup", "cpu.max", "8000 100000"),
                                     ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "8000")):
            self.parent, self.folder = parent, f"{parent}/{name}"
            try:
                os.mkdir(self.folder)
                self.write(f"{self.folder}/{limit}", value)
                return
            except OSError as error:
                problems.append(str(error))
                self.remove()
        raise Skip("no control group with a limit can be made: " + "; ".join(problems))

    @staticmethod
    def write(path, value):
        # Without making it: where the first version is mounted, the folder of the second one holds plain files.
        with open(os.open(path, os.O_WRONLY), "w", encoding="utf-8") as file:
            file.write(value)

    def take(self, pid):
        self.write(f"{self.folder}/cgroup.procs", str(pid))

    def give_back(self, pid):
        self.write(f"{self.parent}/cgroup.procs", str(pid))

    def remove(self):
        try:
            os.rmdir(self.folder)
        except OSError:
            pass


class Trial:
    def __init__(self, arguments, kind, number):
        self.arguments, self.kind, self.number = arguments, kind, number
        choose = random.Random(arguments.seed * 1_000_003 + number)
        self.nodes = choose.choice((1, 2))
        self.victim = choose.randrange(RANKS)
        self.when = choose.choice(("some", "every", str(choose.randrange(12, 40))))
        self.milliseconds = choose.randrange(120, 400)
        self.steps = {"some": 64, "every": 20}.get(self.when, 50)

    def describe(self):
        return (f"trial {self.number} (seed {self.arguments.seed}): {self.kind} of rank {self.victim} on {self.nodes} "
                f"node(s), steps: {self.when}, {self.milliseconds} ms")

    def launch(self, folder, program, around=()):
        command = [*around, self.arguments.dlaunch, "--simulate-nodes", str(self.nodes), "--nproc-per-node", str(RANKS // self.nodes),
                   "--stopped", "wait", "--trace", folder + "/job.pftrace", "--", *program]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, job, expected=0):
        printed, _ = job.communicate(timeout=END_SECONDS)
        if job.returncode != expected:
            raise RuntimeError(f"{self.describe()}: exit status {job.returncode}\n{printed}")

    def run(self, folder):
        words = [self.arguments.why_ranks, "replicas", self.kind, str(self.victim), self.when, str(self.milliseconds),
                 str(self.steps)]
        if self.kind == "pipeline":
            words[1:3] = ["pipeline", "compute"]
        self.finish(self.launch(folder, words))

    def run_garbage(self, folder):
        if subprocess.run([sys.executable, "-c", "import dlaunch"], capture_output=True, check=False).returncode != 0:
            raise Skip("this Python has no package dlaunch")
        with open(folder + "/garbage.py", "w", encoding="utf-8") as file:
            file.write(GARBAGE)
        self.finish(self.launch(folder, [sys.executable, folder + "/garbage.py", str(self.victim), self.when,
                                         str(self.milliseconds * 8000), str(self.steps)]))

    def run_throttled(self, folder):
        group = Throttled()
        job = self.launch(folder, [self.arguments.why_ranks, "replicas", "none", "0", "0", "0", "0"])
        try:
            self.await_up(job)
            pid = self.process_of_victim(job.pid)
            time.sleep(1.5)  # usual steps
            group.take(pid)
            time.sleep(THROTTLED_SECONDS)
            if self.when != "every":
                group.give_back(pid)
                time.sleep(1.5)  # usual steps again
        finally:
            job.send_signal(signal.SIGTERM)
            try:
                self.finish(job, 128 + signal.SIGTERM)
            finally:
                group.remove()

    def run_link(self, folder):
        self.nodes = 2
        probe = subprocess.run(["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", "root", *DEAD_LINK],
                               capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            raise Skip("no network namespace whose link can be cut: " + probe.stderr.strip())
        # One that is ordered to be slow in no step: the link is cut while it runs.
        job = self.launch(folder, [self.arguments.why_ranks, "replicas", "none", "0", "0", "0", "0"],
                          ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"])
        network = ["nsenter", "-t", str(job.pid), "-n", "tc", "qdisc"]
        try:
            self.await_up(job)
            for _ in range(1 if self.when.isdigit() else 3):
                time.sleep(1)
                subprocess.run([*network, "add", "dev", "lo", "root", *DEAD_LINK], check=True)
                time.sleep(self.milliseconds / 1000)
                subprocess.run([*network, "del", "dev", "lo", "root"], check=True)
            time.sleep(2)
        finally:
            job.send_signal(signal.SIGTERM)
            self.finish(job, 128 + signal.SIGTERM)

    def await_up(self, job):
        while job.stdout.readline().find("] up") < 0:
            if job.poll() is not None:
                raise RuntimeError(f"{self.describe()}: ended at once")

    def process_of_victim(self, dlaunch):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        variables = file.read().split(b"\0")
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        program = file.read().split(b"\0")[0].decode()
                except OSError:
                    continue
                if program == self.arguments.why_ranks and f"RANK={self.victim}".encode() in variables and \
                        self.descends(int(pid), dlaunch):
                    return int(pid)
            time.sleep(0.05)
        raise RuntimeError(f"{self.describe()}: there is no rank {self.victim}")

    @staticmethod
    def descends(pid, ancestor):
        while pid > 1 and pid != ancestor:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                pid = int(file.read().rsplit(")", 1)[1].split()[1])
        return pid == ancestor

    def judge(self, folder):
        why = subprocess.run([self.arguments.dlaunch, "why", "--json", folder + "/job.pftrace"], capture_output=True,
                             text=True, timeout=END_SECONDS, check=False)
        if why.returncode != 0:
            raise RuntimeError(f"{self.describe()}: {why.stderr}")
        return json.loads(why.stdout)


KINDS = {  # how it is run, and the reasons that are right
    "compute": (Trial.run, COMPUTES),
    "uneven": (Trial.run, COMPUTES),
    "read": (Trial.run, ("reads",)),
    "lock": (Trial.run, ("waits for a lock",)),
    "stop": (Trial.run, ("is stopped",)),
    "pipeline": (Trial.run, COMPUTES),
    "garbage": (Trial.run_garbage, ("collects garbage",)),
    "throttle": (Trial.run_throttled, ("is throttled",)),
    # Held out.
    "link": (Trial.run_link, ()),
    "write": (Trial.run, ("writes",)),
    "child": (Trial.run, ("waits for a process",)),
    "file_lock": (Trial.run, ("waits for a lock",)),
}
HELD_OUT = ("link", "write", "child", "file_lock")


def score(trial, found):
    """Whether the right rank was named ("right", "wrong", "unsure"), and whether the reason is right."""
    culprit = found.get("culprit")
    if trial.kind == "link":  # no rank is to blame, but the network between the nodes
        named = culprit is not None and not culprit["ranks"] and culprit["nodes"] == ["node0", "node1"]
        rank = "right" if named else "wrong" if culprit and culprit["ranks"] else "unsure"
        return rank, named and culprit["in_call"]
    named = culprit["ranks"][0] if culprit and culprit["ranks"] else None
    rank = "unsure" if named is None else "right" if named == trial.victim else "wrong"
    return rank, rank == "right" and culprit["reason"]["activity"] in KINDS[trial.kind][1]


def share_line(name, count):
    trials = max(count["trials"], 1)
    shares = [100.0 * count[word] / trials for word in ("right", "wrong", "reason")]
    return shares, "{}: {} trials, right rank {:.1f} %, wrong rank {:.1f} %, right reason {:.1f} %".format(
        name, count["trials"], *shares)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("dlaunch", type=os.path.abspath)
    parser.add_argument("why_ranks", type=os.path.abspath)
    parser.add_argument("--count", "--trials", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--show", action="store_true", help="print every answer, not only those that are not right")
    arguments = parser.parse_args()
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    counts = collections.defaultdict(collections.Counter)
    for number in range(arguments.count):
        kind = kinds[number % len(kinds)]
        if counts[kind]["skipped"]:
            continue
        trial = Trial(arguments, kind, number)
        with tempfile.TemporaryDirectory() as folder:
            try:
                KINDS[kind][0](trial, folder)
            except Skip as skip:
                counts[kind]["skipped"] = 1
                print(f"skipped: {kind}: {skip}", flush=True)
                continue
            found = trial.judge(folder)
        rank, reason = score(trial, found)
        counts[kind]["trials"] += 1
        counts[kind][rank] += 1
        counts[kind]["reason"] += reason
        if arguments.show or rank != "right" or not reason:
            print(trial.describe() + f": {rank} rank, reason {'right' if reason else 'not right'}")
            print("    " + "\n    ".join(found["lines"]), flush=True)
    print(f"{'kind':<18}{'trials':>8}{'right':>8}{'wrong':>8}{'unsure':>8}{'reason':>8}")
    totals = {False: collections.Counter(), True: collections.Counter()}
    for kind in kinds:
        count = counts[kind]
        totals[kind in HELD_OUT].update(count)
        name = kind + (", held out" if kind in HELD_OUT else "")
        print(f"{name:<18}" + "".join(f"{count[word]:>8}" for word in ("trials", "right", "wrong", "unsure", "reason")))
    print(share_line("tuned by", totals[False])[1])
    print(share_line("held out (" + ", ".join(HELD_OUT) + ")", totals[True])[1])
    shares, line = share_line("all", totals[False] + totals[True])
    print(line)
    return 0 if shares[0] >= RIGHT and shares[1] <= WRONG and shares[2] >= REASONS else 1


if __name__ == "__main__":
    os.environ.pop("COHORT_AGENT", None)
    sys.exit(main())
