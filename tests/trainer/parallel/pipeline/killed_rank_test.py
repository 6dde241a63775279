#!/usr/bin/env python3
"""killed_rank_test.py <dlaunch> <trainer_pipeline_ranks>: a rank killed within a step is named on the other stages."""

import re
import subprocess
import sys


def main(dlaunch, program):
    command = [dlaunch, "--nproc-per-node", "3", "--on-failure", "continue", "--", program,
               "--gtest_also_run_disabled_tests", "--gtest_filter=*AKilledRank*"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = re.findall(r"^\[([02])\] told: .*rank 1 .*SIGKILL", ended.stdout, re.MULTILINE)
    if sorted(told) == ["0", "2"]:
        return 0
    print(f"told: {told}, exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
