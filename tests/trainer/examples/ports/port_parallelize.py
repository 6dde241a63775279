#!/usr/bin/env python3
"""Trains a small transformer on a 2-D mesh, as PyTorch's tutorial on tensor parallelism shows: layers are cut over some
ranks, and FSDP shares them over the others. port_parallelize.cc is the same in C++.

    torchrun --nproc-per-node 4 port_parallelize.py --tensor 2 --save digits
"""
import argparse
import math

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits_data import load_digits

ROWS, WIDTH, HEAD = 8, 48, 12


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, x):
        # The features that the cut has left to this rank say how many heads it has.
        return x.view(x.size(0), ROWS, x.size(-1) // HEAD, HEAD).transpose(1, 2)

    def forward(self, x):
        queries = self.heads(self.q(x))
        keys = self.heads(self.k(x))
        values = self.heads(self.v(x))
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(HEAD)
        return self.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.rows = nn.Linear(8, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(ROWS, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images):
        x = self.rows(images.squeeze(1)) + self.places
        x = self.blocks(x)
        return self.head(self.norm(x).mean(1))


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--batch-size", type=int, default=48)  # of all ranks together
    parser.add_argument("--tensor", type=int, default=2)  # here it must divide the heads
    parser.add_argument("--save")
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("gloo")
    shape = (dist.get_world_size() // args.tensor, args.tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("shard", "tensor"))
    data_rank, data_ranks = mesh["shard"].get_local_rank(), mesh["shard"].size()
    torch.manual_seed(0)
    train, test = load_digits()
    model = Net(layers=2)
    for block in model.blocks:
        plan = {
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        parallelize_module(block, mesh["tensor"], plan)
    parallelize_module(model, mesh["tensor"], {"head": ColwiseParallel(output_layouts=Replicate())})
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    # Ranks along "tensor" have the same data_rank, and so the same images.
    sampler = DistributedSampler(train, num_replicas=data_ranks, rank=data_rank)
    loader = DataLoader(train, batch_size=args.batch_size // data_ranks, sampler=sampler)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            step += 1
            if dist.get_rank() == 0:
                print(f"step {step}: loss {mean.item():.6f}")
    if args.save:
        parameters, state = get_state_dict(model, optimizer)
        dcp.save({"model": parameters, "optimizer": state, "step": step}, checkpoint_id=args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
