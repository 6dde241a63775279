"""Training steps that are measured, on each backend in turn: DistributedDataParallel of a net for handwritten digits, and
fully_shard (FSDP2) of a small GPT on the text of Shakespeare's plays."""

import os
import time

import torch
import torch.distributed as dist

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "trainer", "examples", "data")
BATCH = 64  # images of a rank
SEQUENCE, SEQUENCES, WIDTH, LAYERS, HEADS = 64, 4, 128, 4, 4


def ddp_digits(group):
    """A function that trains one step, and the images that all ranks together take in it."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    with open(os.path.join(DATA, "digits.csv"), encoding="utf-8") as file:
        rows = torch.tensor([[float(word) for word in line.split(",")] for line in file if line.strip()])
    images, labels = rows[rank::size, :-1] / 16, rows[rank::size, -1].long()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
                              torch.nn.Linear(256, 10))
    ddp = torch.nn.parallel.DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    place = 0

    def step():
        nonlocal place
        chosen = torch.arange(place, place + BATCH) % len(images)
        place += BATCH
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(images[chosen]), labels[chosen]).backward()
        optimizer.step()

    return step, BATCH * size


class Gpt(torch.nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.characters = torch.nn.Embedding(characters, WIDTH)
        self.places = torch.nn.Parameter(torch.zeros(SEQUENCE, WIDTH))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True,
                                             norm_first=True) for _ in range(LAYERS))
        self.out = torch.nn.Linear(WIDTH, characters)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(SEQUENCE))

    def forward(self, text):
        hidden = self.characters(text) + self.places
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask)
        return self.out(hidden)


def fsdp2_gpt(group):
    """A function that trains one step, and the characters that all ranks together take in it."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    with open(os.path.join(DATA, "shakespeare.txt"), encoding="utf-8") as file:
        text = file.read()[:200_000]
    known = sorted(set(text))
    codes = torch.tensor([known.index(character) for character in text])
    torch.manual_seed(0)
    net = Gpt(len(known))
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(rank)

    def step():
        starts = torch.randint(0, len(codes) - SEQUENCE - 1, (SEQUENCES,), generator=numbers).tolist()
        inputs = torch.stack([codes[at:at + SEQUENCE] for at in starts])
        targets = torch.stack([codes[at + 1:at + SEQUENCE + 1] for at in starts])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    return step, SEQUENCE * SEQUENCES * size


NETS = {"ddp_digits": (ddp_digits, "images"), "fsdp2_gpt": (fsdp2_gpt, "characters")}


def measure(name, groups, turns, steps, emit):
    """Emits what each backend trains in a second, in each turn."""
    make, unit = NETS[name]
    try:
        made = {backend: make(group) for backend, group in groups.items()}
    except ImportError as error:
        for backend in groups:
            emit(kind="training", net=name, unit=unit, backend=backend, rates=[], refused=str(error))
        return
    rates = {backend: [] for backend in made}
    for turn in range(turns + 1):
        for backend in list(made) if turn % 2 else reversed(list(made)):
            step, amount = made[backend]
            dist.barrier()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            dist.barrier()
            if turn > 0:  # the first is for connections and caches
                rates[backend].append(steps * amount / (time.perf_counter() - began))
    for backend in made:
        emit(kind="training", net=name, unit=unit, backend=backend, rates=rates[backend], refused=None)
