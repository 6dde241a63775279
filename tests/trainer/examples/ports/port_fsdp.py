#!/usr/bin/env python3
"""Trains digits with shards that are replicated (HSDP), as PyTorch's FSDP tutorial shows; port_fsdp.cc is the same in C++.

    torchrun --nproc-per-node 4 port_fsdp.py --replicate 2
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits_data import load_digits


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return F.log_softmax(self.out(x), dim=1)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--replicate", type=int, default=2)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("gloo")
    shape = (args.replicate, dist.get_world_size() // args.replicate)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    train, test = load_digits()
    model = Net(layers=3)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=12, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
