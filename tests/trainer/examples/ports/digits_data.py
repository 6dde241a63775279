"""The handwritten digits of data/digits.csv as two TensorDatasets, with the split of digits_data.h."""

import os

import torch
from torch.utils.data import TensorDataset


def load_digits(seed=0):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../trainer/examples/data/digits.csv")) as file:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in file])
    images = ((rows[:, :64].float() - 4.9) / 6.0).view(-1, 1, 8, 8)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    test, train = order[:len(rows) // 5], order[len(rows) // 5:]
    return TensorDataset(images[train], rows[train, 64]), TensorDataset(images[test], rows[test, 64])
