#!/usr/bin/env python3
"""Trains digits with FairScale's OSS and ShardedDataParallel, as its documentation shows; port_fairscale.cc is the same
in C++.

    torchrun --nproc-per-node 2 port_fairscale.py
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits_data import load_digits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x):
        return F.log_softmax(self.out(F.silu(self.hidden(x.flatten(1)))), dim=1)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = load_digits()
    model = Net()
    optimizer = OSS(params=model.parameters(), optim=torch.optim.SGD, lr=args.lr, momentum=0.9)
    model = ShardedDataParallel(model, optimizer)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=24, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            model.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    images, labels = test[:]
    with torch.no_grad():
        correct = model(images).argmax(1) == labels
    if dist.get_rank() == 0:
        print(f"test accuracy {correct.float().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
