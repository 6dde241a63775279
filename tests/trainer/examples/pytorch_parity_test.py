#!/usr/bin/env python3
"""pytorch_parity_test.py <bin folder> <digits.csv> <digits_trainer> <scaler_trace>: PyTorch's DistributedDataParallel and
ZeroRedundancyOptimizer, with its DistributedSampler, end with our weights; its GradScaler does what ours does.
Skipped (77) where there is no PyTorch.

Tolerance of weights: that of digits_equivalence_test.cc, 2e-4 of the largest weight; other seeds differ by more than
0.1 of it. Of the scaler (scale, steps since it changed, infinities found, steps skipped, misuse refused): none."""

import os
import random
import re
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


def scaler_script(ranks, seed):
    """Training with two optimizers as it should be, and calls in any order, for pytorch_scaler_trace.py."""
    chance = random.Random(seed)
    kinds, weights = ("finite", "infinite", "nan", "large"), (40, 1, 1, 4)

    def backward(which):
        return f"backward {which} " + " ".join(chance.choices(kinds, weights, k=ranks))

    def anything():
        which = chance.randrange(2)
        set_scale = f"update {chance.choice((2, 0.3))}"
        return chance.choice((backward(which), f"unscale {which}", f"step {which}", "update", set_scale))

    lines = []
    for run in range(24):
        # Factors of few bits: PyTorch multiplies by them as float32 on the CPU and as float64 on CUDA, as ours does.
        options = (65536, 3e4, 1), (2, 1.5, 4), (0.5, 0.75, 0.125), (1, 2, 3)
        lines.append("new " + " ".join(str(chance.choice(choices)) for choices in options))
        lines += [backward(0), backward(1)]
        for _ in range(10):
            if run % 2 == 0:
                lines += [anything() for _ in range(6)]
            else:
                explicit = [f"unscale {which}" for which in range(2) if chance.random() < 0.3]
                lines += [backward(0), backward(1), *explicit, "step 0", "step 1", "update"]
    return "\n".join(lines) + "\n"


def scalers_differ(dlaunch, ours, theirs, work):
    script, mine, other = (os.path.join(work, name) for name in ("script", "ours", "theirs"))
    for ranks in (1, 2):
        seed = ranks
        with open(script, "w") as file:
            file.write(scaler_script(ranks, seed))
        launch = [dlaunch, "--nproc-per-node", str(ranks), "--"]
        run(*launch, ours, script, mine)
        run(*launch, sys.executable, theirs, script, other)
        for rank in range(ranks):
            text, expected = (open(f"{output}.{rank}").read() for output in (mine, other))
            for line, (a, b) in enumerate(zip(text.splitlines(), expected.splitlines(), strict=True), 1):
                if a != b:
                    operation = open(script).read().splitlines()[line - 1]
                    print(f"GradScaler on rank {rank} of {ranks}, seed {seed}, after \"{operation}\" (line {line}):\n"
                          f"  ours     {a}\n  PyTorch  {b}")
                    return True
            seen = {word for word in ("refused", "found yes", "found no", "tracker 1", "tracker 2") if word in text}
            scales = [float(scale) for scale in re.findall(r"scale (\S+)", text)]
            if len(seen) < 5 or len(set(scales)) < 20:
                print(f"the scaler's script shows too little: {sorted(seen)}, {len(set(scales))} scales")
                return True
        print(f"GradScaler on {ranks} ranks: {len(text.splitlines())} operations alike, {text.count('refused')} "
              f"refused, scales from {min(scales):g} to {max(scales):g}", flush=True)
    return False


def main(folder, data, ours, scaler_trace):
    dlaunch = os.path.join(folder, "dlaunch")
    here = os.path.dirname(os.path.abspath(__file__))
    theirs = os.path.join(here, "pytorch_digits.py")
    with tempfile.TemporaryDirectory() as work:
        failed = scalers_differ(dlaunch, scaler_trace, os.path.join(here, "../state/pytorch_scaler_trace.py"), work)
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
