"""Ranks of the tests of groups with a backend for each kind of device: torch_mixed_ranks.py <scenario>.

There need be no CUDA device: Gloo's part for CUDA can be made without one, and in "cpu:gloo,cuda:cohort" it is the
calls on CPU tensors that go to another backend."""

import datetime
import sys
import warnings

import torch
import torch.distributed as dist

import dlaunch.torch  # noqa: F401: registers the backend
import torch_differential
from raises import raises
from torch_differential import RANK, SIZE

LIMIT = datetime.timedelta(seconds=100)
OURS, THEIRS = "cpu:cohort,cuda:gloo", "cpu:gloo,cuda:cohort"


def check_calls(group, members):
    """Every collective, on a few types and layouts. Calls that Gloo refuses, on all members alike, are left out."""
    served = set()
    for call in torch_differential.REDUCING + torch_differential.MOVING:
        for dtype in (torch.float32, torch.int64):
            for layout in ("plain", "long"):
                for asynchronous in (False, True):
                    if call is torch_differential.reduce_scatter and "cpu" not in group.devices:
                        continue
                    case = torch_differential.Case(members, dtype, layout, asynchronous)
                    op = ("SUM",) if call in torch_differential.REDUCING else ()
                    try:
                        actual, expected = call(case, group, *op)
                    except (RuntimeError, ValueError):
                        assert "cpu" not in group.devices, call.__name__
                        continue
                    served.add(call)
                    for ours, right in zip(actual, expected):
                        assert torch.equal(ours, right), (call.__name__, dtype, layout)
    assert len(served) >= 10, served


def check_group(group, backend, members=None):
    members = members or list(range(SIZE))
    assert dist.get_backend(group) == backend == dist.distributed_c10d.get_backend_config(group)
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    assert dist.distributed_c10d._get_object_coll_device(group) == "cpu"
    for device in ("cpu", "cuda"):
        part = group._get_backend(torch.device(device))
        assert part.name() == backend.split(device + ":")[1].split(",")[0], part.name()
        assert part.rank() == members.index(RANK) and part.size() == len(members)
    check_calls(group, members)
    torch_differential.objects(group, members)
    dist.monitored_barrier(group, timeout=LIMIT)
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(1, device="meta"), group=group), "meta")


def start(backend):
    dist.init_process_group(backend, timeout=LIMIT)
    return dist.distributed_c10d._get_default_group()


def groups():
    """As the default group, with sub-groups of it and with groups of other backends; again after their end."""
    for backend in (OURS, THEIRS):
        check_group(start(backend), backend)
        some = [rank for rank in range(SIZE) if rank != 1]
        group = dist.new_group(some, timeout=LIMIT)
        if RANK in some:
            check_group(group, backend, some)
            dist.destroy_process_group(group)
        other = THEIRS if backend == OURS else OURS
        check_group(dist.new_group(backend=other, timeout=LIMIT), other)
        assert len(dist.distributed_c10d._world.pg_map) == 2, "a part of a group is known as a group"
        plain = dist.new_group(backend="cohort", timeout=LIMIT)
        value = torch.ones(1)
        dist.all_reduce(value, group=plain)
        assert value.item() == SIZE
        dist.destroy_process_group()


def named():
    """The order and the case of the devices do not matter; a device without a backend, or with two, is refused."""
    group = start("CUDA:gloo,cpu:COHORT")
    assert dist.get_backend(group) == "cuda:gloo,cpu:cohort"
    check_calls(group, list(range(SIZE)))
    alone = dist.new_group(backend="cpu:cohort", timeout=LIMIT)
    check_calls(alone, list(range(SIZE)))
    raises(RuntimeError, lambda: alone._get_backend(torch.device("cuda")), "device type cuda")
    raises(ValueError, lambda: dist.new_group(backend="cpu:cohort,cpu:gloo"), "Duplicate device")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(1, device="meta"), group=alone), "meta")
    both = dist.new_group(backend="cpu:cohort,cuda:cohort", timeout=LIMIT)
    check_calls(both, list(range(SIZE)))
    dist.destroy_process_group()


def mesh():
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    start(OURS)
    rows = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("outer", "inner"))
    value = torch.full((SIZE, 2), float(RANK))
    row = [r for r in range(SIZE) if r // (SIZE // 2) == RANK // (SIZE // 2)]
    assert (functional.all_reduce(value, "sum", rows["inner"]) == sum(row)).all()
    assert functional.all_gather_tensor(value, 0, rows["inner"])[::SIZE, 0].tolist() == row
    assert dist.get_backend(rows.get_group("inner")) == OURS
    dist.destroy_process_group()


def trained(backend):
    """The weights after DistributedDataParallel over this backend."""
    start(backend)
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(4):
        optimizer.zero_grad()
        ddp(torch.randn(4, 32, generator=torch.Generator().manual_seed(10 * step + RANK))).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def ddp():
    expected = trained("gloo")
    for backend in (OURS, THEIRS):
        difference = (trained(backend) - expected).abs().max().item()
        assert difference < 1e-5, (backend, difference)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    name = sys.argv[1]
    globals()[name]()
    print(f"{name}: done", flush=True)
