#!/usr/bin/env python3
"""Trains ResNet-50 on two devices of one process, in splits that keep both at work, as PyTorch's model-parallel tutorial
shows; port_resnet.cc is the same in C++.

    python3 port_resnet.py --split-size 20
"""
import argparse
import time

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet


class ModelParallelResNet50(ResNet):
    def __init__(self, classes):
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=classes)
        self.seq1 = nn.Sequential(
            self.conv1,
            self.bn1,
            self.relu,
            self.maxpool,
            self.layer1,
            self.layer2,
        ).to("cuda:0")
        self.seq2 = nn.Sequential(
            self.layer3,
            self.layer4,
            self.avgpool,
        ).to("cuda:1")
        self.fc.to("cuda:1")

    def forward(self, x):
        x = self.seq2(self.seq1(x).to("cuda:1"))
        return self.fc(x.view(x.size(0), -1))


class PipelineParallelResNet50(ModelParallelResNet50):
    def __init__(self, split_size, classes):
        super().__init__(classes)
        self.split_size = split_size

    def forward(self, x):
        splits = iter(x.split(self.split_size, dim=0))
        s_next = next(splits)
        s_prev = self.seq1(s_next).to("cuda:1")
        ret = []
        for s_next in splits:
            s_prev = self.seq2(s_prev)
            ret.append(self.fc(s_prev.view(s_prev.size(0), -1)))
            s_prev = self.seq1(s_next).to("cuda:1")
        s_prev = self.seq2(s_prev)
        ret.append(self.fc(s_prev.view(s_prev.size(0), -1)))
        return torch.cat(ret)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=120)
    parser.add_argument("--split-size", type=int, default=20)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--image-size", type=int, default=128)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(0)
    model = PipelineParallelResNet50(args.split_size, args.classes)
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for batch in range(args.batches):
        begin = time.time()
        inputs = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
        classes = torch.randint(args.classes, (args.batch_size, 1))
        labels = torch.zeros(args.batch_size, args.classes).scatter_(1, classes, 1)
        optimizer.zero_grad()
        outputs = model(inputs.to("cuda:0"))
        loss = loss_fn(outputs, labels.to(outputs.device))
        loss.backward()
        optimizer.step()
        print(f"batch {batch + 1}: loss {loss.item():.4f}, {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
