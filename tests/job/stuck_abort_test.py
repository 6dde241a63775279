#!/usr/bin/env python3
"""An abort of NCCL that hangs: after 5 s the agent kills the rank, and the job's end says why.

usage: stuck_abort_test.py DLAUNCH RANK_PROGRAM FAKE_NCCL
"""
import os
import subprocess
import sys
import time

DLAUNCH, PROGRAM, FAKE = sys.argv[1:4]
PROMISE_SECONDS = 5

start = time.monotonic()
job = subprocess.run([DLAUNCH, "--on-failure", "continue", "--nproc-per-node", "2", "--", PROGRAM, FAKE],
                     stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, errors="replace",
                     env=dict(os.environ, COHORT_NCCL_LIBRARY=FAKE, COHORT_CUDA_LIBRARY=FAKE))
took = time.monotonic() - start
output = job.stdout + "\n--- stderr\n" + job.stderr
print(output)
assert job.returncode != 0, "the job succeeded"
killed = [line for line in job.stderr.splitlines() if "killed by its agent: NCCL's abort did not end" in line]
assert killed and "rank 0" in killed[0], "the agent does not name the rank that it killed, and why"
assert "rank 1: " in job.stdout and "200" in job.stdout, "rank 1 was not told of the calls that do not match"
assert PROMISE_SECONDS <= took < 10 * PROMISE_SECONDS, f"it took {took:.1f} s"
