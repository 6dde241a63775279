"""The characters of data/shakespeare.txt, and batches of its passages, as in text_data.h."""

import os

import torch


class Text:
    def __init__(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../trainer/examples/data/shakespeare.txt")) as file:
            text = file.read()
        self.characters = sorted(set(text))
        code = {character: i for i, character in enumerate(self.characters)}
        codes = torch.tensor([code[character] for character in text])
        self.train, self.validation = codes[:len(codes) * 9 // 10], codes[len(codes) * 9 // 10:]

    def batch(self, train, step, count, length, rank, ranks):
        """Passages numbered rank, rank + ranks, ... of `count`, and what follows each of their characters."""
        text = self.train if train else self.validation
        places = torch.randint(len(text) - length, (count,), generator=torch.Generator().manual_seed(step))
        indices = places[rank::ranks, None] + torch.arange(length)
        return text[indices], text[indices + 1]
