"""Flips single bits in results and in parameters, passes NaN and infinity, and prints how many the checks have named.

  check_score.py <dlaunch> <job_checked_ranks> [<trainer_checked_ranks>] [--flips 1000] [--nans 200]

Four fifths of the flips are in results of collectives (--check results), the rest in parameters (check_replicas_every).
A result is right where every rank's error names the call, and the rank that stands out if three or more have a copy.

These are not seen, by design, and no trial makes them:

  a result that one rank alone has    reduce, gather, scatter, reduce-scatter, all-to-all, send: there is no copy
  the result of a group's last call   the hash rides in the next call: end with a barrier
  a user's function                   it need not give the same bits twice
  a buffer of rank 0 of a module      DDP sends it to all before each forward pass; others' copies are overwritten
  a parameter healed in between       rounding of a later step, or a NaN that all get, made the replicas equal again
"""

import argparse
import os
import re
import subprocess
import sys

# (share of the trials, nodes, ranks a node, transports)
RESULTS = ((1, 1, 2, ""), (3, 1, 3, ""), (3, 1, 5, ""), (2, 1, 8, ""), (3, 2, 2, "shm,tcp"), (3, 3, 2, "shm,tcp"))
PARAMETERS = ((1, 1, 2, ""), (3, 1, 3, ""), (3, 2, 2, ""))
SCORE = re.compile(r"score: (\d+) of (\d+) .* (\d+) of them with two copies alone")


def shares(layouts, trials):
    """The layouts with their numbers of trials, which add up to `trials`."""
    total, given = sum(layout[0] for layout in layouts), 0
    for i, (share, *rest) in enumerate(layouts):
        count = trials - given if i + 1 == len(layouts) else trials * share // total
        given += count
        yield count, *rest


def run(dlaunch, program, check, layouts, trials):
    """(right, made, with two copies alone) of all trials."""
    sums = [0, 0, 0]
    for count, nodes, ranks, transports in shares(layouts, trials):
        if count == 0:
            continue
        environment = dict(os.environ, **({"COHORT_TRANSPORTS": transports} if transports else {}))
        command = [dlaunch, "--simulate-nodes", str(nodes), "--nproc-per-node", str(ranks)]
        if check:
            command += ["--check", check, "--", program, check, str(count)]
        else:
            environment["FLIPPED_BITS"] = str(count)
            command += ["--", program, "--gtest_filter=ReplicaCheck.AFlippedBit*"]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=3000)
        found = SCORE.search(done.stdout)
        if found is None:
            print(done.stdout + done.stderr)
            sys.exit(f"no score of {' '.join(command)}")
        numbers = [int(number) for number in found.groups()]
        print(f"  {nodes} x {ranks} ranks{', ' + transports if transports else ''}: {numbers[0]} of {numbers[1]}")
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            sys.exit(f"{' '.join(command)} failed")
        sums = [a + b for a, b in zip(sums, numbers)]
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dlaunch")
    parser.add_argument("checked_ranks")
    parser.add_argument("trainer_checked_ranks", nargs="?")
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--nans", type=int, default=200)
    options = parser.parse_args()
    in_parameters = options.flips // 5 if options.trainer_checked_ranks else 0
    scores = {}
    print("flipped bits in results:")
    scores["results"] = run(options.dlaunch, options.checked_ranks, "results", RESULTS, options.flips - in_parameters)
    if in_parameters:
        print("flipped bits in parameters:")
        scores["parameters"] = run(options.dlaunch, options.trainer_checked_ranks, "", PARAMETERS, in_parameters)
    print("first NaNs and infinities:")
    scores["inputs"] = run(options.dlaunch, options.checked_ranks, "nan", RESULTS, options.nans)
    for name, (right, made, pairs) in scores.items():
        alone = f"; {pairs} with two copies, where nobody can tell which is right" if pairs else ""
        print(f"{name}: {right} of {made} named{alone}")
    return any(right != made for right, made, _ in scores.values())


if __name__ == "__main__":
    sys.exit(main())
