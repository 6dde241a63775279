"""Runs a script of ranks under dlaunch: launch.py <dlaunch> <python> <ranks> <modules that it needs, or -> <script>
[argument...]. It fails unless the exit
status is COHORT_TEST_EXIT, 0 where that is not set. Skips, with the reason, where a module is absent."""

import os
import subprocess
import sys

dlaunch, python, ranks, needs, script = sys.argv[1:6]
if needs != "-":
    found = subprocess.run([python, "-c", f"import {needs}"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"skipped: {os.path.basename(script)}: {python} cannot import {needs}: {reason}")
        sys.exit(77)
command = [dlaunch, "--nproc-per-node", ranks, "--", python, script, *sys.argv[6:]]
expected = int(os.environ.get("COHORT_TEST_EXIT", "0"))
status = subprocess.run(command, check=False).returncode
if status != expected:
    sys.exit(f"exit status {status} instead of {expected}")
