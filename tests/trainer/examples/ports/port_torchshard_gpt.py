#!/usr/bin/env python3
"""Trains a small GPT all of whose matrices are cut over the ranks with TorchShard, as its project on minGPT does;
port_torchshard_gpt.cc is the same in C++.

    torchrun --nproc-per-node 2 port_torchshard_gpt.py
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchshard as ts
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from text_data import Text


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.size = width // heads
        # Each head's query, key and value are neighbours, so that a cut leaves heads whole.
        self.qkv = ts.nn.ParallelLinear(width, 3 * width, dim=1)
        self.out = ts.nn.ParallelLinear(width, width, dim=0)

    def forward(self, x):
        batch, length, _ = x.size()
        qkv = self.qkv(x).view(batch, length, -1, 3, self.size)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        scores = q @ k.transpose(-2, -1) / self.size**0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        y = y.transpose(1, 2).reshape(batch, length, -1)
        ts.register_parallel_dim(y, -1)
        return self.out(y)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = ts.nn.ParallelLinear(width, 4 * width, dim=1)
        self.down = ts.nn.ParallelLinear(4 * width, width, dim=0)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = F.gelu(self.up(self.norm2(x)))
        ts.register_parallel_dim(y, -1)
        return x + self.down(y)


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.tokens = ts.nn.ParallelEmbedding(vocabulary, width, dim=0)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = ts.nn.ParallelLinear(width, vocabulary, dim=1)

    def forward(self, codes):
        places = torch.arange(codes.size(1), device=codes.device)
        x = self.tokens(codes) + self.positions(places)
        x = self.blocks(x)
        x = self.norm(x)
        return self.head(x.flatten(0, 1))


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=-1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    group_size = dist.get_world_size() if args.group_size == -1 else args.group_size
    ts.distributed.init_process_group(group_size=group_size)
    group, groups = dist.get_rank() // group_size, dist.get_world_size() // group_size
    torch.manual_seed(0)
    text = Text()
    vocabulary = -(-len(text.characters) // group_size) * group_size  # it must divide
    model = GPT(vocabulary, args.context, args.layers, args.heads, args.width)
    ts.register_ddp_parameters_to_ignore(model)
    model = DistributedDataParallel(model.cuda(), device_ids=[dist.get_rank()])
    criterion = ts.nn.ParallelCrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        inputs, targets = text.batch(True, step, args.batch_size, args.context, group, groups)
        optimizer.zero_grad()
        loss = criterion(model(inputs.cuda()), targets.flatten().cuda())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    inputs, targets = text.batch(False, 0, 4 * args.batch_size, args.context, group, groups)
    with torch.no_grad():
        loss = criterion(model(inputs.cuda()), targets.flatten().cuda())
    if dist.get_rank() == 0:
        print(f"validation loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
