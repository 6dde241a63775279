"""Runs a script of ranks under dlaunch: launch.py <dlaunch> <python> <ranks, or nodes x ranks: 2x2> <modules that it needs, -,
or cuda: torch and a device> <script> [argument...]. It fails unless the exit status is COHORT_TEST_EXIT (0), and the output has the regular expression
COHORT_TEST_PRINTS. COHORT_TEST_OPTIONS are more options of dlaunch. No rank may end by SIGSEGV or SIGABRT. Skips, with the reason, where a module is absent."""

import os
import re
import subprocess
import sys

dlaunch, python, ranks, needs, script = sys.argv[1:6]
if needs != "-":
    probe = "import torch; torch.zeros(1, device='cuda')" if needs == "cuda" else f"import {needs}"
    found = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"skipped: {os.path.basename(script)}: {python} cannot do \"{probe}\": {reason}")
        sys.exit(77)
nodes, _, per_node = ranks.rpartition("x")
placement = ["--simulate-nodes", nodes] if nodes else []
if needs == "cuda":
    placement += ["--gpus-per-rank", "1"]
placement += os.environ.get("COHORT_TEST_OPTIONS", "").split()
command = [dlaunch, *placement, "--nproc-per-node", per_node, "--", python, script, *sys.argv[6:]]
expected = int(os.environ.get("COHORT_TEST_EXIT", "0"))
ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                     check=False)
print(ran.stdout, end="")
if ran.returncode != expected:
    sys.exit(f"exit status {ran.returncode} instead of {expected}")
if crash := re.search("SIGSEGV|SIGABRT", ran.stdout):
    sys.exit(f"a rank ended by {crash[0]}")
if not re.search(os.environ.get("COHORT_TEST_PRINTS", ""), ran.stdout):
    sys.exit(f"the output has no {os.environ['COHORT_TEST_PRINTS']!r}")
