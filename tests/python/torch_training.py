"""Trains with DistributedDataParallel, FSDP2, ZeroRedundancyOptimizer, DeviceMesh and torch.compile: torch_training.py <dlaunch> [ranks].

It starts two jobs: one trains over cohort and then over Gloo, the other over cohort alone. The final weights of Gloo
differ by TOLERANCE of the largest weight at most; those of the second job have the same bits as those of the first."""

import contextlib
import datetime
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(f"skipped: {sys.executable} has no PyTorch: {error}")
    sys.exit(77)

TOLERANCE = 1e-5
STEPS = 24
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FEATURES, OUTPUTS, ROWS = 16, 4, 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(FEATURES)
        self.up = torch.nn.Linear(FEATURES, 36)  # does not divide evenly among 8 shards
        self.down = torch.nn.Linear(36, FEATURES)

    def forward(self, rows):
        return rows + self.down(torch.tanh(self.up(self.norm(rows))))


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(FEATURES, OUTPUTS))


class Branches(torch.nn.Module):
    """Its ranks use different parameters, and no rank uses the last ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = Block()
        self.branches = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(FEATURES, OUTPUTS)
        self.step = 0

    def forward(self, rows):
        self.step += 1
        return self.head(self.branches[(RANK + self.step) % 2](self.trunk(rows)))


class Twice(torch.nn.Module):
    """A static graph: one block is used twice, checkpointed, and one never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block, self.unused, self.head = Block(), Block(), torch.nn.Linear(FEATURES, OUTPUTS)

    def forward(self, rows):
        for _ in range(2):
            rows = checkpoint(self.block, rows, use_reentrant=False)
        return self.head(rows)


class Batches:
    """Rows of this rank, other ones in each call, and what a net should make of them."""

    def __init__(self, seed):
        self.numbers = torch.Generator().manual_seed(100 + seed)
        self.teacher = torch.randn(FEATURES, OUTPUTS, generator=torch.Generator().manual_seed(1)) / FEATURES**0.5

    def loss(self, model):
        rows = torch.randn(ROWS, FEATURES, generator=self.numbers)
        return (model(rows) - torch.sin(rows @ self.teacher)).square().mean()


def flat(parameters):
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
    return torch.cat([tensor.detach().reshape(-1) for tensor in whole])


def descend(model, optimizer, steps=STEPS, micro_batches=1, clip=None, seed=RANK):
    """Trains, and checks that the loss gets less. All micro-batches but the last keep their gradients local."""
    batches, losses = Batches(seed), []
    for _ in range(steps):
        optimizer.zero_grad()
        for micro_batch in range(micro_batches):
            last = micro_batch == micro_batches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = batches.loss(model) / micro_batches
                loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4]), losses
    return model


def distributed(model=None, bucket_cap_mb=0.005, **options):
    return torch.nn.parallel.DistributedDataParallel(model or net(), bucket_cap_mb=bucket_cap_mb, **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def ddp():
    model = distributed(torch.nn.Sequential(torch.nn.BatchNorm1d(FEATURES), net()), gradient_as_bucket_view=True)
    return descend(model, sgd(model))


def ddp_no_sync():
    model = distributed()
    return descend(model, sgd(model), micro_batches=3)


def ddp_join():
    """Each rank has other numbers of batches."""
    model = distributed()
    with model.join():
        descend(model, sgd(model), steps=STEPS + 3 * RANK)
    return model


def ddp_static_graph():
    model = distributed(Twice(), static_graph=True)
    return descend(model, sgd(model))


def ddp_find_unused_parameters():
    model = distributed(Branches(), find_unused_parameters=True)
    return descend(model, sgd(model))


def sharded(model, seed=RANK, clip=1.0, **options):
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return descend(model, torch.optim.AdamW(model.parameters(), lr=0.01), clip=clip, seed=seed)


def fsdp2():
    return sharded(net())


def fsdp2_hybrid():
    """Shards within the rows of a mesh, copies between them."""
    return sharded(net(), mesh=mesh("replicate", "shard"), reshard_after_forward=False)


def mesh(*names):
    return init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=names)


def mesh_tensor_parallel():
    """Tensor parallelism in the rows of a mesh, FSDP2 between them."""
    both, model = mesh("data", "tensor"), net()
    for block in list(model)[:2]:
        parallelize_module(block, both["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # Ranks of one row share their batches. PyTorch clips no gradients over several meshes.
    return sharded(model, both.get_local_rank("data"), clip=None, mesh=both["data"])


def zero():
    model = distributed()
    return descend(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


def compiled(model, **options):
    return torch.compile(model, backend="aot_eager", **options)  # which needs no compiler of C++


def ddp_compiled():
    model = distributed(bucket_cap_mb=25)  # the compiler wants no less than the first bucket's
    descend(compiled(model), sgd(model))
    return model


def fsdp2_compiled():
    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    descend(compiled(model), torch.optim.AdamW(model.parameters(), lr=0.01))
    return model


def tensor_parallel_compiled():
    """One graph, collectives and all."""
    model = net()
    for block in list(model)[:2]:
        parallelize_module(block, init_device_mesh("cpu", (SIZE,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    descend(compiled(model, fullgraph=True), sgd(model), seed=0)
    return model


class Collectives(torch.nn.Module):
    """Collectives of both kinds in the forward pass, and what a group says of itself."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, rows):
        group = dist.group.WORLD
        total = rows.sum(0)
        dist.all_reduce(total)
        everyone = functional.all_gather_tensor(total, 0, group).view(dist.get_world_size(), -1)
        part = functional.reduce_scatter_tensor(everyone.repeat(1, 2).view(-1), "sum", 0, group)
        offset = functional.all_reduce(part[:FEATURES], "max", group) / dist.get_world_size(group) ** 3
        return self.net(rows + 0.01 * offset)


def ddp_compiled_collectives():
    model = Collectives()
    averaged = distributed(model, bucket_cap_mb=25)
    model.forward = compiled(model.forward, fullgraph=True)
    descend(averaged, sgd(averaged))
    return model


TRAININGS = (ddp, ddp_no_sync, ddp_join, ddp_static_graph, ddp_find_unused_parameters, fsdp2, fsdp2_hybrid,
             mesh_tensor_parallel, zero, ddp_compiled, fsdp2_compiled, tensor_parallel_compiled,
             ddp_compiled_collectives)


def train(backends, folder):
    """Trains on this rank over one backend after the other. Rank 0 writes the weights into the folder."""
    torch.set_num_threads(1)
    for backend in backends:
        if backend == "cohort":
            import dlaunch.torch  # noqa: F401: registers the backend
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=100))
        weights = {}
        for training in TRAININGS:
            weights[training.__name__] = mine = flat(training().parameters())
            copies = [torch.empty_like(mine) for _ in range(SIZE)]
            dist.all_gather(copies, mine)
            assert all(torch.equal(copy, mine) for copy in copies), f"{training.__name__}: the ranks' weights differ"
        if RANK == 0:
            torch.save(weights, os.path.join(folder, backend))
        dist.destroy_process_group()


def weights_of_job(dlaunch, ranks, backends):
    with tempfile.TemporaryDirectory(prefix="cohort-training-") as folder:
        subprocess.run([dlaunch, "--nproc-per-node", ranks, "--", sys.executable, __file__, "--rank", folder, *backends],
                       check=True)
        return [torch.load(os.path.join(folder, backend)) for backend in backends]


def main(dlaunch, ranks="4"):
    ours, theirs = weights_of_job(dlaunch, ranks, ["cohort", "gloo"])
    again, = weights_of_job(dlaunch, ranks, ["cohort"])
    wrong = []
    for name, weights in ours.items():
        difference = ((weights - theirs[name]).abs().max() / theirs[name].abs().max()).item()
        same = torch.equal(weights, again[name])
        print(f"{name}: {weights.numel()} weights, {difference:.2g} of the largest away from Gloo's, "
              f"{'the same' if same else 'OTHER'} bits in a second job", flush=True)
        if not same or not difference <= TOLERANCE:
            wrong.append(name)
    if wrong:
        sys.exit(f"not as Gloo's within {TOLERANCE}, or not the same twice: {' '.join(wrong)}")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        train(sys.argv[3:], sys.argv[2])
    else:
        main(*sys.argv[1:])
