"""Four ranks lose one, shrink, lose another, shrink, and go on: under dlaunch --on-failure continue, several seeds. And
where a member has ended in order, shrinking is refused at once, with its name.

    shrink_test.py DLAUNCH SHRINK_RANKS NODES
"""

import subprocess
import sys

SEEDS = range(1, 6)


def start(dlaunch: str, program: str, nodes: int, arguments: list) -> subprocess.CompletedProcess:
    command = [dlaunch, "--on-failure", "continue", "--nproc-per-node", str(4 // nodes)]
    if nodes > 1:
        command += ["--simulate-nodes", str(nodes)]
    return subprocess.run(command + ["--", program] + arguments, capture_output=True, text=True, timeout=100, check=False)


def run_with_ended(dlaunch: str, program: str, nodes: int) -> str:
    job = start(dlaunch, program, nodes, ["1", "ended"])
    told = [line for line in job.stdout.splitlines() if "told after" in line and "rank 0" in line]
    if len(told) == 2 and "wrong:" not in job.stderr:
        return ""
    return f"{len(told)} ranks were told of the ended one, not 2\n{job.stdout}{job.stderr}"


def run(dlaunch: str, program: str, nodes: int, seed: int) -> str:
    """The error of one job, or nothing."""
    job = start(dlaunch, program, nodes, [str(seed)])
    survivors = job.stdout.count("goes on among 2")
    if survivors == 2 and "wrong:" not in job.stderr:
        return ""
    return f"seed {seed}: {survivors} ranks went on, not 2\n{job.stdout}{job.stderr}"


def main() -> int:
    dlaunch, program, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for wrong in [run_with_ended(dlaunch, program, nodes)] + [run(dlaunch, program, nodes, seed) for seed in SEEDS]:
        if wrong:
            print(wrong)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
