#!/usr/bin/env python3
"""dlaunch --encrypt-data: ranks of two nodes talk over TLS and say so, and refuse what would not encrypt.

usage: encrypt_data_test.py DLAUNCH JOB_FINISHED_PART_RANKS
"""
import os
import subprocess
import sys

DLAUNCH, RANKS = sys.argv[1:3]
SAID = "encrypted by TLS 1.3, AES-256-GCM"
failures = 0


def run(options, program, environment=None, *, works, says, silent=None):
    """Runs a job of two nodes with two ranks each."""
    global failures
    command = [DLAUNCH, "--simulate-nodes", "2", "--nproc-per-node", "2", *options, "--", *program]
    kept = {name: value for name, value in os.environ.items() if name not in ("COHORT_TRANSPORTS", "COHORT_ENCRYPT_DATA")}
    done = subprocess.run(command, env={**kept, **(environment or {})}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    right = (done.returncode == 0) == works and says in done.stdout and (silent is None or silent not in done.stdout)
    if not right:
        failures += 1
        print("%s: status %d\n%s" % (" ".join(command), done.returncode, done.stdout))


job = [RANKS, "1"]
run(["--encrypt-data"], job, works=True, says=SAID)
run(["--encrypt_data"], job, works=True, says=SAID)
run([], job, {"COHORT_ENCRYPT_DATA": "1"}, works=True, says=SAID)
run([], job, works=True, says="TCP sockets on", silent="encrypted")
run(["--encrypt-data"], job, {"COHORT_TRANSPORTS": "ucx"}, works=False, says="it does not encrypt, as --encrypt-data")
one = ["sh", "-c", 'COHORT_ENCRYPT_DATA=$((GROUP_RANK == 0)) exec "$0" 1', RANKS]
run([], one, works=False, says="start the job by dlaunch --encrypt-data")
run(["--encrypt-data", "--env", "COHORT_ENCRYPT_DATA=0"], job, works=False, says="contradict each other")
sys.exit(1 if failures else 0)
