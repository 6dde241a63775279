#!/usr/bin/env python3
"""Trains digits with DeepSpeed's ZeRO stage 2, as its "Getting started" shows; port_deepspeed.cc is the same in C++.

    deepspeed --num_gpus 2 port_deepspeed.py --deepspeed_config port_deepspeed.json
"""
import argparse

import deepspeed
import torch
import torch.nn.functional as F
from torch import nn

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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main():
    args = parse_arguments()
    deepspeed.init_distributed()
    torch.manual_seed(args.seed)
    train, test = load_digits()
    net = Net()
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=train)
    for epoch in range(args.epochs):
        loader.data_sampler.set_epoch(epoch)
        for images, labels in loader:
            images, labels = images.to(engine.device), labels.to(engine.device)
            loss = F.nll_loss(engine(images), labels)
            engine.backward(loss)
            engine.step()
    engine.eval()
    images, labels = test[:]
    with torch.no_grad():
        correct = engine(images.to(engine.device)).argmax(1).cpu() == labels
    if engine.global_rank == 0:
        print(f"test accuracy {correct.float().mean():.4f}")


if __name__ == "__main__":
    main()
