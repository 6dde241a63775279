#!/usr/bin/env python3
"""Trains digits in pipeline stages under 1F1B, as PyTorch's pipelining tutorial shows; port_pipeline.cc is the same in C++.

    torchrun --nproc-per-node 2 port_pipeline.py --micro-batches 4
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from digits_data import load_digits


def make_model():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256),
        nn.SiLU(),
        nn.Linear(256, 256),
        nn.SiLU(),
        nn.Linear(256, 10),
    )


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--micro-batches", type=int, default=4)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = load_digits(seed=0)
    layers = list(make_model())
    begin, end = rank * len(layers) // size, (rank + 1) * len(layers) // size
    module = nn.Sequential(*layers[begin:end])
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters(), lr=args.lr)
    batch = 12 * args.micro_batches
    for epoch in range(args.epochs):
        losses = []
        for rows in torch.randperm(len(train.images)).split(batch):
            if len(rows) < batch:
                continue
            images, labels = train.images[rows], train.labels[rows]
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(images)
            elif rank == size - 1:
                losses = []
                schedule.step(target=labels, losses=losses)
            else:
                schedule.step()
            optimizer.step()
        if rank == size - 1:
            print(f"epoch {epoch + 1}: loss {torch.stack(losses).mean():.4f}")
    count = len(test.images) // args.micro_batches * args.micro_batches
    with torch.no_grad():
        output = schedule.eval(*([test.images[:count]] if rank == 0 else []))
    if rank == size - 1:
        correct = output.argmax(1) == test.labels[:count]
        print(f"test accuracy {correct.float().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
