#!/usr/bin/env python3
"""Trains digits with a head and a tail on two devices of each process, replicated over the processes of a Slurm job
(DDP), as PyTorch's tutorials on model parallelism and DDP combine; port_head_tail.cc is the same in C++.

    srun --nodes=2 --ntasks-per-node=4 --gres=gpu:8 python3 port_head_tail.py --groups_size 2 --group_per_node 4
"""
import argparse
import os
import subprocess

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits_data import load_digits


class HeadTail(nn.Module):
    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 256),
            nn.SiLU(),
        ).to(devices[0])
        self.tail = nn.Sequential(
            nn.Linear(256, 256),
            nn.SiLU(),
            nn.Linear(256, 10),
        ).to(devices[-1])

    def forward(self, x):
        x = self.head(x.to(self.devices[0]))
        return self.tail(x.to(self.devices[-1]))


class PipelinedHeadTail(HeadTail):
    def __init__(self, devices, micro_batches):
        super().__init__(devices)
        self.micro_batches = micro_batches

    def forward(self, x):
        parts = iter(x.to(self.devices[0]).chunk(self.micro_batches))
        before = self.head(next(parts)).to(self.devices[-1])
        outputs = []
        for part in parts:
            outputs.append(self.tail(before))
            before = self.head(part).to(self.devices[-1])
        outputs.append(self.tail(before))
        return torch.cat(outputs)


def init_process_group(args):
    """As Slurm started this process; the first node's name is where all meet."""
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    if size != args.group_per_node * int(os.environ["SLURM_NNODES"]):
        raise SystemExit(f"start it by srun --ntasks-per-node={args.group_per_node}")
    if torch.cuda.device_count() != args.groups_size * args.group_per_node:
        raise SystemExit(f"start it by srun --gres=gpu:{args.groups_size * args.group_per_node}")
    nodes = subprocess.check_output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True)
    dist.init_process_group("nccl", init_method=f"tcp://{nodes.split()[0]}:29500", rank=rank, world_size=size)
    first = int(os.environ["SLURM_LOCALID"]) * args.groups_size
    return [torch.device("cuda", first + i) for i in range(args.groups_size)]


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--groups_size", type=int, default=2)
    parser.add_argument("--group_per_node", type=int, default=4)
    parser.add_argument("--micro_batches", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    devices = init_process_group(args)
    torch.manual_seed(0)
    train, test = load_digits()
    if args.micro_batches > 1:
        model = PipelinedHeadTail(devices, args.micro_batches)
    else:
        model = HeadTail(devices)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=12, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            outputs = model(images)
            loss = F.cross_entropy(outputs, labels.to(outputs.device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    images, labels = test[:]
    with torch.no_grad():
        correct = model(images).argmax(1).cpu() == labels
    if dist.get_rank() == 0:
        print(f"test accuracy {correct.float().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
