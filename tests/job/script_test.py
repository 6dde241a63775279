#!/usr/bin/env python3
"""Runs rank_script.py as a job, on one node and on two simulated ones, and checks what its ranks print.

usage: script_test.py DLAUNCH
"""
import os
import subprocess
import sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_script.py")


def run(layout, arguments):
    done = subprocess.run([sys.argv[1], *layout, "--", sys.executable, SCRIPT, *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=50, text=True)
    if done.returncode != 0:
        raise AssertionError("exit status %d\n%s%s" % (done.returncode, done.stdout, done.stderr))
    return sorted(done.stdout.splitlines())


def main():
    for layout in (["--nproc-per-node", "4"], ["--simulate-nodes", "2", "--nproc-per-node", "2"]):
        alone = ["[%d] rank %d of 4: %d" % (rank, rank, sum(range(rank, 100, 4))) for rank in range(4)]
        printed = run(layout, [])
        assert printed == alone, "%s printed %s" % (layout, printed)
        met = run(layout, ["--meet"])
        assert met == ["[0] rank 0 of 4: 4950"] + alone[1:], "%s printed %s" % (layout, met)


if __name__ == "__main__":
    main()
