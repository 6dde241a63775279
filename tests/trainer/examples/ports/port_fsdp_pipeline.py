#!/usr/bin/env python3
"""Trains digits in pipeline stages that are sharded each (FSDP), on a mesh of two dimensions, as PyTorch's tutorials on
pipelining and FSDP combine; port_fsdp_pipeline.cc is the same in C++.

    torchrun --nproc-per-node 4 port_fsdp_pipeline.py --stages 2
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data.distributed import DistributedSampler

from digits_data import load_digits


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


def make_model():
    return nn.Sequential(
        nn.Flatten(),
        Block(),
        Block(),
        Block(),
        Block(),
        nn.Linear(64, 10),
    )


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    return parser.parse_args()


def main():
    args = parse_arguments()
    dist.init_process_group("gloo")
    shape = (args.stages, dist.get_world_size() // args.stages)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pipeline", "shard"))
    pipeline, shard = mesh["pipeline"], mesh["shard"]
    index = pipeline.get_local_rank()
    torch.manual_seed(0)
    train, test = load_digits()
    layers = list(make_model())
    begin, end = index * len(layers) // args.stages, (index + 1) * len(layers) // args.stages
    module = nn.Sequential(*layers[begin:end])
    for layer in module:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=shard)
    fully_shard(module, mesh=shard)
    stage = PipelineStage(module, index, args.stages, torch.device("cpu"), group=pipeline.get_group())
    schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters(), lr=args.lr)
    sampler = DistributedSampler(train, shard.size(), shard.get_local_rank())
    batch = 6 * args.micro_batches
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for rows in torch.tensor(list(sampler)).split(batch):
            if len(rows) < batch:
                continue
            images, labels = train[rows]
            losses = []
            optimizer.zero_grad()
            if index == 0:
                schedule.step(images)
            elif index == args.stages - 1:
                schedule.step(target=labels, losses=losses)
            else:
                schedule.step()
            optimizer.step()
        if losses and shard.get_local_rank() == 0:
            print(f"epoch {epoch + 1}: loss {torch.stack(losses).mean():.4f}")
    count = len(test) // args.micro_batches * args.micro_batches
    images, labels = test[:count]
    with torch.no_grad():
        output = schedule.eval(*([images] if index == 0 else []))
    if index == args.stages - 1 and shard.get_local_rank() == 0:
        correct = output.argmax(1) == labels
        print(f"test accuracy {correct.float().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
