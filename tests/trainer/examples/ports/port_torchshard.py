#!/usr/bin/env python3
"""Classifies digits with TorchShard: a data-parallel backbone, and a head whose classes are cut over the ranks, as its
project on images does; port_torchshard.cc is the same in C++.

    torchrun --nproc-per-node 2 port_torchshard.py
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchshard as ts
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits_data import load_digits


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * 4 * 4, classes)

    def forward(self, x):
        x = self.features(x)
        x = ts.distributed.gather(x, dim=0)
        return self.head(x)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--group-size", type=int, default=-1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    group_size = dist.get_world_size() if args.group_size == -1 else args.group_size
    ts.distributed.init_process_group(group_size=group_size)
    torch.manual_seed(0)
    train, test = load_digits()
    model = Net(classes=10)
    model.head = ts.nn.ParallelLinear.convert_parallel_linear(model.head, dim=1)
    ts.register_ddp_parameters_to_ignore(model)
    model = DistributedDataParallel(model.cuda(), device_ids=[dist.get_rank()])
    criterion = ts.nn.ParallelCrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            images, labels = images.cuda(), labels.cuda()
            optimizer.zero_grad()
            loss = criterion(model(images), ts.distributed.gather(labels, dim=0))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    images, labels = test[:]
    with torch.no_grad():
        logits = ts.distributed.gather(model(images.cuda()), dim=-1)
    correct = logits[:len(labels)].argmax(1).cpu() == labels
    if dist.get_rank() == 0:
        print(f"test accuracy {correct.float().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
