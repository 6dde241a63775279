"""Ranks of a test of dlaunch.torch on CUDA tensors: torch_cuda_ranks.py [backend...], two or more ranks. On one device:

    dlaunch --simulate-nodes 2 --gpus-per-rank 1 -- python torch_cuda_ranks.py

Each check prints a line. A check that fails is told with its cause, and the next one goes on with a new group, so that
one run says all. The ranks agree on each check's end through the store, which needs no group."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import dlaunch.torch  # noqa: F401: registers the backend
from raises import raises
from torch_cuda_support import BACKENDS, LIMIT, RANK, SIZE, check, cuda, every, full, run, same

TOTAL = sum(range(SIZE))
CYCLES = 1_000_000_000  # of a kernel that does nothing: half a second, about


# --- collectives ---

@check()
def all_reduce(group):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        value = cuda(RANK, 1, 2 * RANK, dtype=dtype)
        dist.all_reduce(value, group=group)
        same(value, TOTAL, SIZE, 2 * TOTAL)
    for op, expected in ((dist.ReduceOp.MAX, SIZE), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, (SIZE + 1) / 2)):
        value = cuda(RANK + 1)
        dist.all_reduce(value, op, group=group)
        same(value, expected)
    value = cuda(2)
    dist.all_reduce(value, dist.ReduceOp.PRODUCT, group=group)
    same(value, 2 ** SIZE)
    number = torch.tensor([RANK + 1j, 2], dtype=torch.complex64, device="cuda")
    dist.all_reduce(number, group=group)
    same(number, TOTAL + SIZE * 1j, 2 * SIZE)
    dist.all_reduce(torch.zeros(0, device="cuda"), group=group)
    value = cuda(7.5)[0]
    dist.all_reduce(value, group=group)
    assert value.item() == 7.5 * SIZE


@check(("cohort",))
def all_reduce_beyond_nccl(group):
    """Types and operations that NCCL does not reduce: 16-bit integers, operations on bits; and bools as 0 and 1."""
    value = cuda(RANK, 300, dtype=torch.int16)
    dist.all_reduce(value, group=group)
    same(value, TOTAL, 300 * SIZE)
    value = cuda(1 << RANK, 1, dtype=torch.int32)
    dist.all_reduce(value, dist.ReduceOp.BOR, group=group)
    same(value, (1 << SIZE) - 1, 1)
    flags = torch.tensor([True, False, RANK == 0], device="cuda")
    dist.all_reduce(flags, group=group)
    same(flags, True, False, True)
    assert flags.view(torch.uint8).max().item() == 1


@check()
def all_reduce_large(group):
    value = full(8 << 20, RANK + 1.0)
    work = dist.all_reduce(value, group=group, async_op=True)
    work.wait()
    every(value, TOTAL + SIZE)


@check(("cohort",))
def all_reduce_with_gaps(group):
    gaps = full(6 * 1000, float(RANK)).view(6, 1000).t()[::2]
    assert not gaps.is_contiguous()
    dist.all_reduce(gaps, group=group)
    every(gaps, TOTAL)
    outputs = [torch.zeros(4, 3, device="cuda").t() for _ in range(SIZE)]
    dist.all_gather(outputs, full(12, float(RANK)).view(4, 3).t(), group=group)
    for rank, output in enumerate(outputs):
        every(output, rank)


@check()
def all_reduce_coalesced(group):
    tensors = [full(count, RANK + 1.0) for count in (1, 1000, 70_001)]
    with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    for tensor in tensors:
        every(tensor, TOTAL + SIZE)


@check()
def broadcast(group):
    for root in range(SIZE):
        value = cuda(RANK, 10 * RANK)
        dist.broadcast(value, root, group=group)
        same(value, root, 10 * root)


@check()
def reduce(group):
    value = cuda(RANK, 1)
    dist.reduce(value, SIZE - 1, group=group)
    if RANK == SIZE - 1:
        same(value, TOTAL, SIZE)


@check()
def all_gather(group):
    outputs = [torch.zeros(2, device="cuda") for _ in range(SIZE)]
    dist.all_gather(outputs, cuda(RANK, -RANK), group=group)
    for rank, output in enumerate(outputs):
        same(output, rank, -rank)
    uneven = [torch.zeros(rank + 1, device="cuda") for rank in range(SIZE)]
    dist.all_gather(uneven, full(RANK + 1, float(RANK)), group=group)
    for rank, output in enumerate(uneven):
        every(output, rank)


@check()
def all_gather_into_tensor(group):
    output = torch.zeros(2 * SIZE, device="cuda")
    dist.all_gather_into_tensor(output, cuda(RANK, RANK + 0.5), group=group)
    same(output, *(rank + half for rank in range(SIZE) for half in (0, 0.5)))
    place = torch.zeros(SIZE, 1000, device="cuda")
    place[RANK] = RANK + 1
    dist.all_gather_into_tensor(place.view(-1), place[RANK], group=group)
    same(place[:, 999], *range(1, SIZE + 1))


@check()
def reduce_scatter(group):
    output = torch.zeros(3, device="cuda")
    dist.reduce_scatter(output, [full(3, float(10 * to + RANK)) for to in range(SIZE)], group=group)
    every(output, 10 * RANK * SIZE + TOTAL)


@check()
def reduce_scatter_tensor(group):
    output = torch.zeros(2, device="cuda")
    dist.reduce_scatter_tensor(output, torch.arange(2.0 * SIZE, device="cuda") + RANK, group=group)
    same(output, 2 * RANK * SIZE + TOTAL, (2 * RANK + 1) * SIZE + TOTAL)
    dist.reduce_scatter_tensor(output, torch.ones(2 * SIZE, device="cuda"), dist.ReduceOp.AVG, group=group)
    same(output, 1, 1)


@check()
def all_to_all(group):
    outputs = [torch.zeros(2, device="cuda") for _ in range(SIZE)]
    dist.all_to_all(outputs, [cuda(RANK, to) for to in range(SIZE)], group=group)
    for rank, output in enumerate(outputs):
        same(output, rank, RANK)


@check()
def all_to_all_single(group):
    output = torch.zeros(SIZE, 2, device="cuda")
    source = torch.stack([cuda(RANK, to) for to in range(SIZE)])
    dist.all_to_all_single(output, source, group=group)
    assert output.tolist() == [[rank, RANK] for rank in range(SIZE)], output
    sends, receives = [(RANK + to) % 3 for to in range(SIZE)], [(RANK + rank) % 3 for rank in range(SIZE)]
    output = torch.zeros(sum(receives), 2, device="cuda")
    source = torch.cat([torch.full((count, 2), 10.0 * RANK + to, device="cuda") for to, count in enumerate(sends)])
    dist.all_to_all_single(output, source, receives, sends, group=group)
    assert output[:, 0].tolist() == [10 * rank + RANK for rank, count in enumerate(receives) for _ in range(count)]


@check()
def gather(group):
    outputs = [torch.zeros(2, device="cuda") for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(cuda(RANK, 5), outputs, 0, group=group)
    for rank, output in enumerate(outputs or ()):
        same(output, rank, 5)


@check()
def scatter(group):
    root, output = SIZE - 1, torch.zeros(2, device="cuda")
    dist.scatter(output, [cuda(to, 7) for to in range(SIZE)] if RANK == root else None, root, group=group)
    same(output, RANK, 7)


@check()
def barrier(group):
    value = cuda(0)
    torch.cuda._sleep(CYCLES // 10)
    value += 1
    dist.barrier(group=group)
    dist.barrier(group=group, device_ids=[torch.cuda.current_device()])
    assert torch.cuda.current_stream().query(), "work from before a barrier was not done behind it"
    same(value, 1)


# --- messages ---

@check()
def send_recv(group):
    for count in (1, 1 << 20):
        for sender in range(SIZE):
            receiver = (sender + 1) % SIZE
            if RANK == sender:
                dist.send(full(count, 3.0 + sender), receiver, group=group)
            elif RANK == receiver:
                value = torch.zeros(count, device="cuda")
                assert dist.recv(value, sender, group=group) == sender
                every(value, 3 + sender)


@check()
def isend_irecv(group):
    if RANK == 0:
        works = [dist.isend(full(1000, float(number)), 1, group=group) for number in range(5)]
    else:
        values = [torch.zeros(1000, device="cuda") for _ in range(5)]
        works = [dist.irecv(value, 0, group=group) for value in values] if RANK == 1 else []
    for work in works:
        work.wait()
    for number, value in enumerate(values if RANK == 1 else ()):
        every(value, number)


@check()
def batch_isend_irecv(group):
    """Both directions at once, of tensors that no buffer holds."""
    count, to, of = 4 << 20, (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for first in (dist.isend, dist.irecv):
        received = torch.zeros(count, device="cuda")
        operations = [dist.P2POp(dist.isend, full(count, 1.0 + RANK), to, group),
                      dist.P2POp(dist.irecv, received, of, group)]
        for work in dist.batch_isend_irecv(operations if first is dist.isend else operations[::-1]):
            work.wait()
        every(received, 1 + of)


# --- streams ---

@check()
def ordered_after_the_current_stream(group):
    stream, value = torch.cuda.Stream(), full(1000, 100.0)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES // 10)
        value.fill_(float(RANK))
        work = dist.all_reduce(value, group=group, async_op=True)
    work.wait()  # on the default stream, which has not waited for the other
    every(value, TOTAL)


@check()
def host_is_not_blocked(group):
    value = full(1000, float(RANK))
    dist.all_reduce(full(1000, 1.0), group=group)  # the first call of a group makes connections, and waits for them
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    work = dist.all_reduce(value, group=group, async_op=True)
    work.wait()
    assert not torch.cuda.current_stream().query(), "the host waited for the collective"
    every(value, TOTAL)
    assert work.is_completed()
    torch.cuda._sleep(CYCLES)
    dist.all_reduce(value, group=group)
    assert not torch.cuda.current_stream().query(), "the host waited for the collective"
    every(value, TOTAL * SIZE)


@check()
def memory_is_kept(group):
    """Tensors that the program drops before the collective has read them, and memory that it takes meanwhile."""
    count = 1 << 20
    for number in range(20):
        torch.cuda._sleep(CYCLES // 100)
        output = torch.zeros(SIZE * count, device="cuda")
        work = dist.all_gather_into_tensor(output, full(count, float(10 * number + RANK)), group=group, async_op=True)
        noise = [full(count, -1.0) for _ in range(4)]
        work.wait()
        same(output[::count], *(10 * number + rank for rank in range(SIZE)))
        every(noise[0], -1)
    for number in range(20):
        torch.cuda._sleep(CYCLES // 100)
        dist.all_reduce(full(count, 1.0).view(1024, -1), group=group, async_op=True)  # work and tensor dropped
        noise = [full(count, -1.0) for _ in range(4)]
    torch.cuda.synchronize()
    for tensor in noise:
        every(tensor, -1)


@check()
def futures(group):
    value = full(1000, float(RANK))
    torch.cuda._sleep(CYCLES // 10)
    future = dist.all_reduce(value, group=group, async_op=True).get_future()
    doubled = future.then(lambda done: (done.value()[0] if isinstance(done.value(), list) else done.value()) * 2)
    every(doubled.wait(), 2 * TOTAL)
    work = dist.all_reduce(value, group=group, async_op=True)
    work.wait(datetime.timedelta(seconds=50))
    every(value, TOTAL * SIZE)


@check()
def many_calls(group):
    """Calls that nobody waits for one by one."""
    values = [full(1 + 1000 * number, float(RANK + number)) for number in range(50)]
    works = [dist.all_reduce(value, group=group, async_op=True) for value in values]
    for number, (value, work) in enumerate(zip(values, works)):
        work.wait()
        every(value, TOTAL + SIZE * number)


# --- the group ---

@check()
def cpu_tensors(group):
    value = torch.tensor([float(RANK)])
    dist.all_reduce(value, group=group)
    assert value.item() == TOTAL
    gathered = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK}, group=group)
    assert gathered == [{"rank": rank} for rank in range(SIZE)]
    objects = [RANK, "text"]
    dist.broadcast_object_list(objects, 1, group=group)
    assert objects == [1, "text"]
    work = dist.all_reduce(value, group=group, async_op=True)
    on_device = cuda(RANK)
    dist.all_reduce(on_device, group=group)
    work.wait()
    assert value.item() == TOTAL * SIZE
    same(on_device, TOTAL)
    dist.monitored_barrier(group, timeout=LIMIT)


@check()
def default_group(_):
    value = cuda(RANK)
    dist.all_reduce(value)
    same(value, TOTAL)
    dist.barrier()


@check()
def new_groups(_):
    alone = [dist.new_group([rank], timeout=LIMIT) for rank in range(SIZE)][RANK]
    value = cuda(RANK)
    dist.all_reduce(value, group=alone)
    dist.broadcast(value, RANK, group=alone)
    output = torch.zeros(1, device="cuda")
    dist.all_gather_into_tensor(output, value, group=alone)
    same(output, RANK)
    everyone = dist.new_group(timeout=LIMIT)
    assert dist.get_backend(everyone) == dist.get_backend()
    dist.all_reduce(value, group=everyone)
    same(value, TOTAL)
    dist.destroy_process_group(everyone)


@check()
def device_mesh(_):
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (1, SIZE), mesh_dim_names=("outer", "inner"))
    value = full(2 * SIZE, float(RANK))
    every(functional.all_reduce(value, "sum", mesh["inner"]), TOTAL)
    same(functional.all_gather_tensor(value, 0, mesh["inner"])[::2 * SIZE], *range(SIZE))
    every(functional.reduce_scatter_tensor(value, "sum", 0, mesh["inner"]), TOTAL)
    every(functional.all_to_all_single(full(SIZE, float(RANK)), None, None, mesh["inner"])[RANK:RANK + 1], RANK)
    every(functional.all_reduce(value, "sum", mesh["outer"]), RANK)
    every(functional.all_reduce(torch.full((4,), float(RANK)), "sum", mesh["inner"]), TOTAL)


@check(("cohort",))
def refused(group):
    raises(ValueError, lambda: dist.recv(cuda(0), group=group), "name the source")
    raises(ValueError, lambda: dist.send(cuda(0), (RANK + 1) % SIZE, group=group, tag=3), "no tags")
    raises(ValueError, lambda: dist.all_gather([torch.zeros(1)] * SIZE, cuda(0), group=group), "one device")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(2, 2, device="cuda").to_sparse(), group=group), "to_dense")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(1, device="meta"), group=group), "meta")
    value = cuda(1)
    dist.all_reduce(value, group=group)
    same(value, SIZE)


# --- training ---

def model_of(device):
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 4)).to(device)


def train(model, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        batch = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * step + RANK)).to(device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def reference():
    """The weights after the same training on the CPU over Gloo."""
    if not hasattr(reference, "weights"):
        gloo = dist.new_group(backend="gloo", timeout=LIMIT)
        model = model_of("cpu")
        train(torch.nn.parallel.DistributedDataParallel(model, process_group=gloo), "cpu")
        reference.weights = [parameter.detach().clone() for parameter in model.parameters()]
        dist.destroy_process_group(gloo)
    return reference.weights


def compare(weights, tolerance):
    for own, right in zip(weights, reference()):
        difference = (own.detach().cpu() - right).abs().max().item()
        assert difference <= tolerance, f"a weight differs by {difference} from Gloo's on the CPU"


@check()
def ddp(group):
    reference()
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        model = model_of("cuda")
        train(torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()],
                                                        process_group=group, bucket_cap_mb=0.02, **options), "cuda")
        compare(model.parameters(), 1e-4)


@check()
def ddp_with_a_hook(group):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    reference()
    for hook, tolerance in ((default_hooks.allreduce_hook, 1e-4), (default_hooks.bf16_compress_hook, 2e-2)):
        model = model_of("cuda")
        wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()],
                                                            process_group=group, bucket_cap_mb=0.02)
        wrapped.register_comm_hook(group, hook)
        train(wrapped, "cuda")
        compare(model.parameters(), tolerance)


@check()
def fully_shard(_):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as shard

    reference()
    model, mesh = model_of("cuda"), init_device_mesh("cuda", (SIZE,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            shard(layer, mesh=mesh)
    shard(model, mesh=mesh)
    train(model, "cuda")
    compare([parameter.full_tensor() for parameter in model.parameters()], 1e-4)


# --- last, since the group fails ---

@check(("cohort",))
def mismatch(group):
    """Calls that do not match end on every rank, and the next call says why."""
    value = full(8, 1.0)
    dist.all_reduce(value, group=group)
    torch.cuda.synchronize()
    work = dist.broadcast(value, 0, group=group, async_op=True) if RANK == 1 else \
        dist.all_reduce(value, group=group, async_op=True)
    until = time.monotonic() + 40
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.01)
    torch.cuda.synchronize()
    error = raises(RuntimeError, lambda: dist.all_reduce(value, group=group))
    assert "broadcast" in str(error) and "all_reduce" in str(error), error


def main():
    if not torch.cuda.is_available():
        sys.exit("torch has no CUDA device")
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    failures = 0
    for backend in sys.argv[1:] or BACKENDS:
        dist.init_process_group(backend, timeout=LIMIT)
        failures += run(backend, dist.distributed_c10d._get_default_store())
        if hasattr(reference, "weights"):
            del reference.weights
        dist.destroy_process_group()
    if RANK == 0:
        print(f"{failures} checks failed" if failures else "all checks passed", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
