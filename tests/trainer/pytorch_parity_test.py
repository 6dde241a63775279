#!/usr/bin/env python3
"""pytorch_parity_test.py <bin folder> <digits.csv>: PyTorch's DistributedDataParallel and ZeroRedundancyOptimizer, with its
DistributedSampler, end with our weights. Skipped (77) where there is no PyTorch.

Tolerance: that of digits_equivalence_test.cc, 2e-4 of the largest weight; other seeds differ by more than 0.1 of it."""

import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed
except ImportError as error:
    print(f"skipped: {error}; Debian's package is python3-torch")
    sys.exit(77)

TOLERANCE = 2e-4


def run(*command):
    subprocess.run(command, check=True, timeout=250, stdout=subprocess.DEVNULL)


def flat(state):
    return torch.cat([state[name].detach().reshape(-1) for name in sorted(state)])


def main(folder, data):
    dlaunch, ours = os.path.join(folder, "dlaunch"), os.path.join(folder, "train_digits")
    theirs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_digits.py")
    failed = False
    with tempfile.TemporaryDirectory() as work:
        initial, saved = os.path.join(work, "initial.pt"), os.path.join(work, "saved.pt")
        run(ours, "--single", "--epochs", "1", "--lr", "1e-30", "--save", initial)
        for ranks, mode in (("2", "ddp"), ("3", "ddp"), ("2", "zero1")):
            launch = [dlaunch, "--nproc-per-node", ranks, "--"]
            run(*launch, ours, "--epochs", "3", "--mode", mode, "--save", saved)
            mine = flat(torch.jit.load(saved).state_dict())
            zero = ["--zero"] if mode == "zero1" else []
            run(*launch, sys.executable, theirs, "--data", data, "--initial", initial, "--save", saved, *zero)
            difference = ((flat(torch.load(saved)) - mine).abs().max() / mine.abs().max()).item()
            print(f"{mode} on {ranks} ranks: largest difference {difference:.2g} of the largest weight", flush=True)
            failed = failed or not difference <= TOLERANCE
        start = flat(torch.jit.load(initial).state_dict())
        if not ((start - mine).abs().max() / mine.abs().max()).item() > 0.05:
            print("the comparison can't tell trained weights from initial ones")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
