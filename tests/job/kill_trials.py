#!/usr/bin/env python3
"""kill -9 of any one process of a job, or of its launcher's together, at any moment: nothing is left, neither process
nor file, shared memory or control group.

usage: kill_trials.py DLAUNCH RANK_PROGRAM [--trials N] [--seed S] [--only KIND] [--mpi HOW]

Every trial is a job on one node or two simulated ones whose ranks run collectives, and each rank has five relatives: a
child, an orphan, a child in a session of its own, one without the job's environment, and one that has both. The job
runs, and the victim is one of these (KIND):

    dlaunch, agent, sentinel, rank, relative    a process of that kind
    both                                        dlaunch and an agent, at the same instant
    all                                         dlaunch, all agents and all sentinels, at the same instant; left out where
                                                no control group may be written, since the relatives then stay
    starting                                    any process, while the job starts

With --mpi the ranks find each other by that option of dlaunch.

A job that outlives its victim is ended by SIGTERM or SIGKILL of dlaunch, and the time counts from there.

Prints how soon everything was gone. Fails when anything stays for ten times the promised second, when anything but
processes is left, or when dlaunch's exit status is not what it should be.
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from job_watch import (cgroup_is_writable, describe_process, environ, kill_at_once, leftovers, processes_with, rank_of,
                       wait_until)

RANKS = 4
PROMISED_SECONDS = 1
SLACK = 10
START_SECONDS = 60
# $0 is the rank's program, $1 its seed, $2 how long relatives sleep, which tells them from others' sleep.
FAMILY = """(sleep $2 &)
sleep $2 &
setsid sleep $2 &
env -i sleep $2 &
env -i setsid sleep $2 &
exec "$0" "$1"
"""
RELATIVES = 5
KINDS = ("dlaunch", "agent", "sentinel", "rank", "relative", "starting", "both", "all")
LONGEST_START = 0.25  # seconds after which a victim of kind "starting" is chosen


def command_of(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Trial:
    def __init__(self, arguments, number):
        self.choose = random.Random(arguments.seed * 1_000_003 + number)
        self.arguments = arguments
        self.number = number
        self.kind = arguments.kinds[number % len(arguments.kinds)]
        self.nodes = self.choose.choice((1, 2))
        self.mark = "COHORT_KILL_TRIAL=%d.%d" % (os.getpid(), number)
        self.sleep = "3600.%08d%06d" % (os.getpid(), number)
        self.what = "nothing"

    def describe(self):
        return "trial %d (seed %d): SIGKILL of %s (%s), %d node(s)" % (
            self.number, self.arguments.seed, self.kind, self.what, self.nodes)

    def processes(self):
        """All of the job, those included that have dropped its environment."""
        found = processes_with(self.mark)
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in found:
                command = command_of(int(name))
                if self.sleep in command:
                    found[int(name)] = command
        return found

    def keepers(self):
        return [pid for pid, command in self.processes().items() if command.startswith("cohort-keeper")]

    def fail(self, what):
        self.errors.seek(0)
        left = ["  " + describe_process(pid, command) for pid, command in sorted(self.processes().items())]
        raise AssertionError("%s: %s\nload %s\nprocesses: %s\n--- what dlaunch printed\n%s" % (
            self.describe(), what, os.getloadavg(), "\n" + "\n".join(left) if left else "none", self.errors.read()))

    def run(self):
        """Seconds from the last signal until nothing was left."""
        with tempfile.TemporaryDirectory(prefix="cohort-kill-trial-") as folder, \
                tempfile.TemporaryFile("w+", errors="replace") as self.errors:
            before = leftovers(folder)
            name, value = self.mark.split("=")
            placement = (["--nproc-per-node", str(RANKS)] if self.nodes == 1 else
                         ["--simulate-nodes", str(self.nodes), "--nproc-per-node", str(RANKS // self.nodes)])
            self.dlaunch = subprocess.Popen(
                [self.arguments.dlaunch, *placement, *self.arguments.how, "--", "sh", "-c", FAMILY,
                 self.arguments.rank_program, str(self.number), self.sleep],
                stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors,
                env=dict(os.environ, TMPDIR=folder, **{name: value}))
            try:
                seconds = self.hurt()
                # Other jobs' shared memory may come and go meanwhile: only what stays was left.
                if not wait_until(lambda: leftovers(folder) <= before, 5):
                    self.fail("files are left: %s" % (leftovers(folder) - before))
                return seconds
            finally:
                for pid in self.processes():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                self.dlaunch.wait()

    def kill(self, pid, number=signal.SIGKILL):
        """The time of it; False when there is no such process any more."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return time.monotonic()

    def wait_until_up(self):
        """Whether the job runs; False when it has ended first."""
        def text():
            self.errors.seek(0)
            return self.errors.read()

        def up():
            return all("[%d] ready" % rank in text() for rank in range(RANKS))
        if not wait_until(lambda: up() or self.dlaunch.poll() is not None, START_SECONDS):
            self.fail("the ranks did not come up")
        return up()

    def victims(self):
        found = self.processes()
        relatives = [pid for pid, command in found.items() if self.sleep in command and command.startswith("sleep ")]
        if self.kind == "starting":
            return sorted(found)
        if self.kind == "dlaunch":
            return [self.dlaunch.pid]
        if self.kind == "relative":
            return sorted(relatives)
        if self.kind == "rank":
            # Not who has yet to become one of its relatives.
            return sorted(pid for pid, command in found.items() if self.arguments.rank_program in command.split(" ")[:2])
        names = {"both": ["agent"], "all": ["agent", "sentinel"]}.get(self.kind, [self.kind])
        return sorted(pid for pid, command in found.items() if any("dlaunch " + name in command for name in names))

    def hurt(self):
        if self.kind == "starting":
            time.sleep(self.choose.uniform(0, LONGEST_START))  # the random moment
        else:
            if not self.wait_until_up():
                self.fail("it ended by itself")
            wanted = self.nodes * 2 + 1 + RANKS * (1 + RELATIVES)
            if not wait_until(lambda: len(self.processes()) - len(self.keepers()) == wanted, START_SECONDS):
                self.fail("found %d processes of %d" % (len(self.processes()) - len(self.keepers()), wanted))
            if self.kind == "all" and not wait_until(lambda: len(self.keepers()) == self.nodes, START_SECONDS):
                self.fail("found %d keepers of control groups" % len(self.keepers()))
        victims = self.victims()
        if not victims:
            self.fail("found no victim")
        victim = self.choose.choice(victims)
        is_dlaunch = victim == self.dlaunch.pid
        self.what = "pid %d: %s%s" % (victim, command_of(victim)[:60], " RANK=%s" % rank_of(victim)
                                      if any(entry.startswith(b"RANK=") for entry in environ(victim)) else "")
        began = time.monotonic()
        if self.kind in ("both", "all"):
            kill_at_once([self.dlaunch.pid] + ([victim] if self.kind == "both" else victims))
        else:
            self.kill(victim)
        expected = {"agent": [125], "rank": [137], "dlaunch": [-signal.SIGKILL], "both": [-signal.SIGKILL],
                    "all": [-signal.SIGKILL]}.get(self.kind)
        goes_on = self.kind in ("sentinel", "relative") or (
            self.kind == "starting" and not is_dlaunch and self.wait_until_up())
        if goes_on:
            number = self.choose.choice((signal.SIGTERM, signal.SIGKILL))
            self.what += ", then %s to dlaunch" % number.name
            expected = [143 if number == signal.SIGTERM else -number]
            # Ranks that were up when one of them or an agent was killed look as if the job went on: dlaunch gets the
            # loss and the signal at once.
            if self.kind == "starting":
                expected.append(125 if " agent " in self.what else 137 if " RANK=" in self.what else expected[0])
            if self.dlaunch.poll() is None:
                began = self.kill(self.dlaunch.pid, number) or began

        def gone():
            return self.dlaunch.poll() is not None and not self.processes()
        if not wait_until(gone, PROMISED_SECONDS * SLACK):
            self.fail("still there after %d s" % (PROMISED_SECONDS * SLACK))
        seconds = time.monotonic() - began
        if expected is not None and self.dlaunch.returncode not in expected:
            self.fail("exit status %d, expected %s" % (self.dlaunch.returncode, " or ".join(map(str, expected))))
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("rank_program", help="what the ranks run: prints \"ready\" and goes on until it is killed")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS, help="victims of this kind")
    parser.add_argument("--mpi", choices=("pmi1", "pmix"), help="the ranks are MPI programs that start so")
    arguments = parser.parse_args()
    arguments.rank_program = os.path.abspath(arguments.rank_program)
    arguments.how = ["--mpi", arguments.mpi] if arguments.mpi else []
    if arguments.mpi:
        os.environ["COHORT_TEST_MPI_HOW"] = arguments.mpi
        probe = subprocess.run([arguments.rank_program, "--probe"])
        if probe.returncode != 0:
            sys.exit(probe.returncode)
    arguments.cgroup = cgroup_is_writable()
    arguments.kinds = [arguments.only] if arguments.only else list(KINDS)
    if not arguments.cgroup and "all" in arguments.kinds:
        print("skipped: killing dlaunch, agents and sentinels together: no control group may be written here")
        arguments.kinds.remove("all")
        if not arguments.kinds:
            sys.exit(77)
    began = time.monotonic()
    figures = {kind: [] for kind in KINDS}
    for number in range(arguments.trials):
        trial = Trial(arguments, number)
        seconds = trial.run()
        figures[trial.kind].append(seconds)
        if seconds > PROMISED_SECONDS:
            print("%.3f s: %s" % (seconds, trial.describe()), flush=True)
        if sys.stderr.isatty():
            print("\r%d of %d" % (number + 1, arguments.trials), end="", file=sys.stderr)
    print("%d trials in %.0f s; seconds from the signal until nothing was left (promised: %d)" %
          (arguments.trials, time.monotonic() - began, PROMISED_SECONDS))
    print("%-10s %7s %8s %8s %8s %s" % ("victim", "trials", "median", "99 %", "max", "within"))
    for kind, values in figures.items():
        if values:
            values.sort()
            within = 100.0 * sum(value <= PROMISED_SECONDS for value in values) / len(values)
            print("%-10s %7d %8.3f %8.3f %8.3f %.1f %%" % (
                kind, len(values), values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)],
                values[-1], within))


if __name__ == "__main__":
    try:
        main()
    except AssertionError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
