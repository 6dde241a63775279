#!/usr/bin/env python3
"""Trains a head of very many classes, cut over the ranks with TorchShard, and its loss, and says how much memory a rank
needs; port_million_classes.cc is the same in C++.

    torchrun --nproc-per-node 8 port_million_classes.py --classes 1000000 --features 2048 --batch-size 256
"""
import argparse
import time

import torch
import torch.distributed as dist
import torchshard as ts
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, features),
            nn.ReLU(),
        )
        self.head = ts.nn.ParallelLinear(features, classes, dim=1)

    def forward(self, x):
        x = self.body(x)
        x = ts.distributed.gather(x, dim=0)
        return self.head(x)


def predicted_bytes(features, classes, batch):
    """Weight, gradient and momentum; the logits, and what becomes their gradient."""
    weights = (features + 1) * classes
    return 3 * 4 * weights + 2 * 4 * batch * classes


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=1000000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    ts.distributed.init_process_group(group_size=size)
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = Net(args.features, args.classes)
    ts.register_ddp_parameters_to_ignore(model)
    model = DistributedDataParallel(model.cuda(), device_ids=[rank])
    criterion = ts.nn.ParallelCrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    torch.manual_seed(rank)
    images = torch.randn(args.batch_size // size, args.features)
    labels = torch.randint(args.classes, (args.batch_size // size,))
    images, labels = images.cuda(), labels.cuda()
    for step in range(args.steps):
        begin = time.time()
        optimizer.zero_grad(set_to_none=True)
        logits = model(images)
        loss = criterion(logits, ts.distributed.gather(labels, dim=0))
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}, {time.time() - begin:.2f} s")
    peak = torch.cuda.max_memory_allocated() - before
    predicted = predicted_bytes(args.features, args.classes // size, args.batch_size)
    print(f"{args.classes // size} classes: {peak / 2**20:.0f} MiB, by formula {predicted / 2**20:.0f} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
