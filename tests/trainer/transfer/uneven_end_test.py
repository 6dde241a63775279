#!/usr/bin/env python3
"""uneven_end_test.py <dlaunch> <trainer_ranks>: ranks whose other process has ended are told of Join."""

import re
import subprocess
import sys


def main(dlaunch, program):
    for how in ("InOrder", "AtOnce"):
        command = [dlaunch, "--nproc-per-node", "3", "--on-failure", "continue", "--", program,
                   "--gtest_also_run_disabled_tests", "--gtest_filter=UnevenEndOfProcesses.*" + how]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        told = re.findall(r"^\[([01])\] told: .*rank 2 .*\bJoin\b", ended.stdout, re.MULTILINE)
        if sorted(told) != ["0", "1"]:
            print(f"{how}: told: {told}, exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
