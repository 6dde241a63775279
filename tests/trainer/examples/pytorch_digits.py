#!/usr/bin/env python3
"""What train_digits does, by PyTorch's own DistributedDataParallel over Gloo: for parity and speed side by side.

    dlaunch --nproc-per-node 2 python3 pytorch_digits.py --data digits.csv --initial weights.pt

takes the initial weights that digits_trainer (of the tests) saved, sees the same images in the same order, and saves the final ones."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DistributedSampler


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(),
            nn.AvgPool2d(2), nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.SiLU(), nn.Linear(64, 10))

    def forward(self, images):
        return torch.log_softmax(self.classifier(self.features(images)), 1)


def training_set(path, seed):
    with open(path) as file:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in file])
    images = ((rows[:, :64].float() - 4.9) / 6.0).view(-1, 1, 8, 8)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[len(rows) // 5:]
    return images[order], rows[order, 64]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--initial", help="weights to begin with, by digits_trainer --save")
    parser.add_argument("--save", help="rank 0 writes the final state_dict here")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--zero", action="store_true", help="ZeroRedundancyOptimizer")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    images, labels = training_set(options.data, options.seed)
    net = DigitsNet()
    if options.initial:
        net.load_state_dict(torch.jit.load(options.initial).state_dict())
    ddp = nn.parallel.DistributedDataParallel(net)
    arguments = {"lr": options.lr, "momentum": 0.9}
    if options.zero:
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, **arguments)
    else:
        optimizer = torch.optim.SGD(net.parameters(), **arguments)
    sampler = DistributedSampler(images, shuffle=True, seed=options.seed)
    batch = options.batch_size // dist.get_world_size()
    steps = len(images) // options.batch_size
    for epoch in range(options.epochs):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = options.lr * (options.epochs - epoch) / options.epochs
        sampler.set_epoch(epoch)
        indices = torch.tensor(list(sampler))
        for step in range(steps):
            rows = indices[step * batch:(step + 1) * batch]
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(ddp(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            loss.item()
        if dist.get_rank() == 0:
            rate = steps * options.batch_size / (time.perf_counter() - start)
            print(f"epoch {epoch + 1:2d}/{options.epochs}  {rate:6.0f} images/s", flush=True)
    if options.save and dist.get_rank() == 0:
        torch.save(net.state_dict(), options.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
