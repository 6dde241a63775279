"""The calls that are measured, on each backend in turn.

`bytes` is the whole buffer of a call: the larger one of input and output. A call begins when its last rank calls and
ends when its last rank has returned."""

import statistics
import time

import torch
import torch.distributed as dist

BUDGET = 0.03  # seconds of calls on one backend in one turn
FEWEST, MOST = 3, 400


def of_group(operation, count, group):
    """A function that makes one call on `count` float32 in all, and the buffers that are then in use."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    block = max(count // size, 1)
    whole, part = torch.zeros(block * size if operation in _IN_BLOCKS else count), torch.zeros(block)
    other = torch.zeros_like(whole) if operation == "all_to_all" else None
    parts = list(whole.chunk(size)) if rank == 0 and operation in ("gather", "scatter") else None

    def send_recv():
        if rank == 0:
            dist.send(whole, 1, group=group)
            dist.recv(whole, 1, group=group)
        elif rank == 1:
            dist.recv(whole, 0, group=group)
            dist.send(whole, 0, group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "reduce": lambda: dist.reduce(whole, 0, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "gather": lambda: dist.gather(part, parts, 0, group=group),
        "scatter": lambda: dist.scatter(part, parts, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send_recv": send_recv,
        "barrier": lambda: dist.barrier(group=group),
    }[operation]


OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
              "send_recv", "barrier")
_IN_BLOCKS = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


def refuses(call):
    """Why a backend does not serve the call, or None. All ranks alike."""
    try:
        call()
        call()
        return None
    except (RuntimeError, ValueError, AttributeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def batch(call, count, group):
    """Seconds of each of `count` calls. The ranks meet before each by the barrier of the same backend: Gloo's calls take
    up to five times as long after a barrier that is faster than its own."""
    times = torch.zeros(count, 2, dtype=torch.float64)
    for i in range(count):
        dist.barrier(group=group)
        began = time.perf_counter()  # one clock for all processes of the machine
        call()
        times[i, 0], times[i, 1] = began, time.perf_counter()
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return (times[:, 1] - times[:, 0]).tolist()


def calls_in_budget(call, group):
    seconds = torch.tensor([statistics.median(batch(call, 3, group))])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return int(min(max(BUDGET / max(seconds.item(), 1e-6), FEWEST), MOST))


def measure(operation, size, groups, turns, emit):
    """Emits the medians of each backend's turns, or why it does not serve the call."""
    made = {name: of_group(operation, max(size // 4, 1), group) for name, group in groups.items()}
    reasons = {name: refuses(call) for name, call in made.items()}
    served = [name for name in made if reasons[name] is None]
    counts = {name: calls_in_budget(made[name], groups[name]) for name in served}
    medians = {name: [] for name in served}
    for turn in range(turns):
        for name in served if turn % 2 else reversed(served):
            medians[name].append(statistics.median(batch(made[name], counts[name], groups[name])) * 1e6)
    for name in made:
        emit(kind="call", operation=operation, bytes=0 if operation == "barrier" else size, backend=name,
             us=medians.get(name, []), refused=reasons[name])
