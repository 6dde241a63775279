#!/usr/bin/env python3
"""`dlaunch stacks` names the functions in which ranks are stuck that are no Python, also behind a shell and on two
nodes, and the ranks go on: nothing traces or stops them afterwards, and the job ends in order.

usage: native_stacks_test.py DLAUNCH STUCK_RANKS
"""
import contextlib
import ctypes.util
import re
import signal
import subprocess
import sys

from job_watch import wait_until

SKIPPED = 77


@contextlib.contextmanager
def job(*command):
    """Its name and the ranks' pids once all three are about to get stuck."""
    with subprocess.Popen([sys.argv[1], *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as started:
        said = ""
        try:
            while said.count("ready: ") < 3:
                said += started.stdout.readline()
                assert started.poll() is None, said
            yield re.search(r"job-[0-9a-f]+", said)[0], [int(pid) for pid in re.findall(r"ready: \d, pid (\d+)", said)]
        finally:
            started.send_signal(signal.SIGINT)
            said += started.communicate(timeout=50)[0]
        assert started.returncode == 130, said


def stacks(*arguments):
    return subprocess.run([sys.argv[1], "stacks", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=50, text=True).stdout


def status(pid):
    with open("/proc/%d/status" % pid) as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def frames(text, rank):
    """The text about that rank, from its heading to the next."""
    found = re.search(r"^rank %d \(.*?(?=^rank|\Z)" % rank, text, re.M | re.S)
    return found[0] if found else ""


def is_whole(text):
    """A thread that does not stop within 20 ms, on a busy machine, is left out of one answer."""
    locked = frames(text, 0)
    return (re.search(r"\|   stuck::LockTwice\(\) \(job_stuck_ranks\)\n +\|   stuck::LoadBatch\(int\)", locked) and
            "stuck::SleepForHours() (job_stuck_ranks)\n    |   stuck::PrefetchForHours()" in locked and
            "ranks 1-2:\n" in text)


def is_untouched(pid):
    now = status(pid)
    return now["State"].startswith("S") and now["TracerPid"] == "0"


def check(*command):
    with job(*command) as (name, pids):
        answers = []

        def answered(is_right, *arguments):
            answers.append(stacks(*arguments, name))
            return is_right(answers[-1])
        assert wait_until(lambda: answered(is_whole), 30), answers[-1]
        assert wait_until(lambda: answered(lambda text: "stuck::SleepForHours()" in text, "--rank", "1"), 30), answers[-1]
        assert "LockTwice" not in answers[-1], answers[-1]
        for pid in pids:
            assert wait_until(lambda: is_untouched(pid), 30), status(pid)


def reason_to_skip():
    if ctypes.util.find_library("dw") is None:
        return "libdw is not installed: apt-get install libdw-dev"
    with job("-n", "3", sys.argv[2]) as (name, _):
        return "ptrace is forbidden here, or this is no x86-64" if "native stacks: none; " in stacks(name) else None


def main():
    reason = reason_to_skip()
    if reason:
        print("skipped: native stacks: " + reason)
        sys.exit(SKIPPED)
    check("-n", "3", sys.argv[2])
    check("-n", "3", "--", "sh", "-c", '"$0"; true', sys.argv[2])
    check("--simulate-nodes", "3", "-n", "3", sys.argv[2])


if __name__ == "__main__":
    main()
