"""Four ranks lose one, shrink, lose another, shrink, and go on: under dlaunch --on-failure continue, several seeds.

    shrink_test.py DLAUNCH SHRINK_RANKS NODES
"""

import subprocess
import sys

SEEDS = range(1, 6)


def run(dlaunch: str, program: str, nodes: int, seed: int) -> str:
    """What is wrong with one job, or nothing."""
    command = [dlaunch, "--on-failure", "continue", "--nproc-per-node", str(4 // nodes)]
    if nodes > 1:
        command += ["--simulate-nodes", str(nodes)]
    job = subprocess.run(command + ["--", program, str(seed)], capture_output=True, text=True, timeout=100, check=False)
    survivors = job.stdout.count("goes on among 2")
    if survivors == 2 and "wrong:" not in job.stderr:
        return ""
    return f"seed {seed}: {survivors} ranks went on, not 2\n{job.stdout}{job.stderr}"


def main() -> int:
    dlaunch, program, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for seed in SEEDS:
        wrong = run(dlaunch, program, nodes, seed)
        if wrong:
            print(wrong)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
