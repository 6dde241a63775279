#!/usr/bin/env python3
"""Trains digits with a linear layer whose output features are cut over the ranks, as tutorials on tensor parallelism
show it; port_tensor_linear.cc is the same in C++.

    torchrun --nproc-per-node 4 port_tensor_linear.py --hidden 256
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from digits_data import load_digits


class GatherFeatures(torch.autograd.Function):
    """dist.all_gather alone has no gradient."""

    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]


class CopyInput(torch.autograd.Function):
    """Each rank's features give a part of the input's gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class TensorParallelLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features // dist.get_world_size())

    def forward(self, x):
        return GatherFeatures.apply(self.linear(CopyInput.apply(x)))


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.first = TensorParallelLinear(64, hidden)
        self.second = TensorParallelLinear(hidden, hidden)
        self.out = nn.Linear(hidden, 10)

    def forward(self, x):
        x = F.silu(self.first(x.flatten(1)))
        x = F.silu(self.second(x))
        return F.log_softmax(self.out(x), dim=1)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--hidden", type=int, default=256)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    train, test = load_digits()
    model = Net(args.hidden)
    for parameter in model.out.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(48):
            images, labels = train[rows]
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
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
