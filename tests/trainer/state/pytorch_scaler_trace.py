#!/usr/bin/env python3
"""pytorch_scaler_trace.py SCRIPT OUTPUT: what scaler_trace.cc does, with PyTorch's ShardedGradScaler over Gloo.

A line of the script is one of

    new INIT_SCALE GROWTH_FACTOR BACKOFF_FACTOR GROWTH_INTERVAL    a scaler, and two optimizers of three weights each
    backward OPTIMIZER KIND...     new gradients, of the loss as it is scaled; finite or not, by rank
    unscale OPTIMIZER | step OPTIMIZER | update | update SCALE

and gives a line: its number, whether it was refused, the scale and the steps since it changed, and for each optimizer
whether infinities were found and the weights.

PyTorch 1.13's GradScaler is for CUDA. Its ShardedGradScaler has code for the CPU, all of which runs here; what it asks
of CUDA, that there is one and that the flag goes there to be added up, is answered by the CPU."""

import importlib.util
import os
import sys

import torch
import torch.cuda.amp.grad_scaler
import torch.distributed as dist

torch.cuda.amp.grad_scaler.amp_definitely_not_available = lambda: False
torch.Tensor.cuda = lambda self, *unused, **unused_too: self

# From its file: the package around it can't be imported by every Python.
path = os.path.join(os.path.dirname(torch.__file__), "distributed/fsdp/sharded_grad_scaler.py")
spec = importlib.util.spec_from_file_location("sharded_grad_scaler", path)
sharded_grad_scaler = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sharded_grad_scaler)

OPTIMIZERS = 2
GRADIENTS = {
    "finite": [0.5, -0.25, 0.125],
    "infinite": [0.5, -float("inf"), 0.125],
    "nan": [0.5, -0.25, float("nan")],
    "large": [1e34, -0.25, 0.125],
}


class Run:
    def __init__(self, numbers, rank):
        init, growth, backoff, interval = numbers
        self.scaler = sharded_grad_scaler.ShardedGradScaler(
            init_scale=float(init), growth_factor=float(growth), backoff_factor=float(backoff),
            growth_interval=int(interval), process_group=dist.group.WORLD)
        self.weights = [(torch.ones(3) * (1 + i + rank)).requires_grad_() for i in range(OPTIMIZERS)]
        self.optimizers = [torch.optim.SGD([weight], 0.125) for weight in self.weights]

    def execute(self, operation, rest, rank):
        if operation == "update":
            self.scaler.update(float(rest[0]) if rest else None)
            return
        which = int(rest[0])
        optimizer = self.optimizers[which]
        if operation == "unscale":
            self.scaler.unscale_(optimizer)
        elif operation == "step":
            self.scaler.step(optimizer)
        else:
            optimizer.zero_grad()
            gradient = torch.tensor(GRADIENTS[rest[1 + rank]])
            self.scaler.scale((self.weights[which] * gradient).sum()).backward()

    def found(self, which):
        state = self.scaler._per_optimizer_states[id(self.optimizers[which])]
        flags = state["found_inf_per_device"].values()
        return "unknown" if not flags else "yes" if sum(flag.item() for flag in flags) else "no"

    def report(self, line, refused):
        words = [str(line), "refused" if refused else "done", "scale", f"{self.scaler.get_scale():.9g}", "tracker",
                 str(int(self.scaler._growth_tracker or 0))]
        for i in range(OPTIMIZERS):
            words += ["found", self.found(i), "weights", *(f"{weight:.9g}" for weight in self.weights[i].tolist())]
        return " ".join(words)


def main(script, output):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run = None
    with open(script) as lines, open(f"{output}.{rank}", "w") as file:
        for line, text in enumerate(lines, 1):
            operation, *rest = text.split()
            refused = False
            if operation == "new":
                run = Run(rest, rank)
            else:
                try:
                    run.execute(operation, rest, rank)
                except (RuntimeError, AssertionError):
                    refused = True
            print(run.report(line, refused), file=file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
