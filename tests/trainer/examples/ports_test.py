#!/usr/bin/env python3
"""ports_test.py <bin folder> <trainer/examples>: the ported programs train, and the keys of the DeepSpeed file that have
no effect are told by name."""

import os
import re
import subprocess
import sys

BARE_GUESSING = 0.1
TRAINED = 0.9


def main(folder, examples):
    config = os.path.join(examples, "port_deepspeed.json")
    failed = False
    for name, ranks, options in (("port_deepspeed", 2, ["--deepspeed_config", config]), ("port_fairscale", 2, []),
                                 ("port_fsdp", 4, ["--replicate", "2"]), ("port_pipeline", 3, []),
                                 ("port_pipeline", 2, ["--schedule", "zbv", "--micro-batches", "6"])):
        command = [os.path.join(folder, "dlaunch"), "--nproc-per-node", str(ranks), "--", os.path.join(folder, name)]
        ended = subprocess.run(command + options, capture_output=True, text=True, timeout=200)
        found = re.search(r"test accuracy ([0-9.]+)", ended.stdout)
        accuracy = float(found.group(1)) if found else BARE_GUESSING
        print(f"{name}: test accuracy {accuracy}", flush=True)
        lacks = []
        if name == "port_deepspeed":
            lacks = [key for key in ("wall_clock_breakdown", "zero_optimization.overlap_comm")
                     if f"{key} has no effect" not in ended.stdout + ended.stderr]
        if ended.returncode != 0 or accuracy < TRAINED or lacks:
            print(f"exit status {ended.returncode}, not told: {lacks}\n{ended.stdout}{ended.stderr}")
            failed = True
    # Two devices of one rank, and two ranks with two each; one loss a batch.
    small = "--batches 2 --batch-size 8 --split-size 2 --classes 10 --image-size 32 --width 4".split()
    for ranks in (1, 2):
        ended = subprocess.run([os.path.join(folder, "dlaunch"), "--simulate-gpus", str(2 * ranks), "--gpus-per-rank", "2", "--",
                                os.path.join(folder, "port_resnet"), *small], capture_output=True, text=True, timeout=200)
        losses = re.findall(r"batch [12]: loss ([0-9.]+)", ended.stdout)
        print(f"port_resnet: {losses}", flush=True)
        if ended.returncode != 0 or len(losses) != 2:
            print(f"exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
