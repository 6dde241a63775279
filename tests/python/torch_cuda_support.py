"""The checks of torch_cuda_ranks.py as a list, what they compare with, and how they run."""

import datetime
import os
import time
import traceback

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BACKENDS = ("cohort", "cpu:cohort,cuda:nccl")
LIMIT = datetime.timedelta(seconds=60)
if torch.cuda.device_count() == 1:
    os.environ.setdefault("NCCL_HOSTID", str(RANK))  # NCCL refuses two ranks of one host on one device
    os.environ.setdefault("NCCL_MAX_CTAS", "2")  # small kernels: the ranks take turns
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")  # a failed check does not end the process
SLOW = 45  # a check that takes this number of seconds has run into a limit
CHECKS = []


def check(backends=BACKENDS):
    """Registers a function of (group) as a check of these backends."""
    def register(function):
        CHECKS.append((function, backends))
        return function
    return register


def cuda(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype, device="cuda")


def full(count, value, dtype=torch.float32):
    return torch.full((count,), value, dtype=dtype, device="cuda")


def same(tensor, *numbers):
    """Reading a tensor waits for the current stream, as a program does."""
    assert tensor.tolist() == list(numbers), (tensor.tolist(), list(numbers))


def every(tensor, value):
    assert bool((tensor == value).all()), (tensor.flatten()[:4].tolist(), value)


def cause(error):
    return "".join(traceback.format_exception(error)).strip()


def agree(store, name, problem):
    """The problems of all ranks with this check."""
    store.set(f"{name}/{RANK}", problem or "-")
    store.wait([f"{name}/{rank}" for rank in range(SIZE)], 4 * LIMIT)
    problems = [store.get(f"{name}/{rank}").decode() for rank in range(SIZE)]
    return [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text != "-"]


def run(backend, store):
    """Returns how many checks failed."""
    failures = slow = 0
    group = None
    for function, backends in CHECKS:
        name = f"{function.__name__} cuda {backend}"
        if backend not in backends:
            continue
        if slow > 3:
            failures += 1
            if RANK == 0:
                print(f"NOT RUN {name}: too many checks ran into a limit", flush=True)
            continue
        began, problem = time.monotonic(), ""
        try:
            group = group or dist.new_group(timeout=LIMIT)
            function(group)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001: told below
            problem = cause(error)
        seconds = time.monotonic() - began
        problems = agree(store, name, problem)
        if problems:
            failures, slow, group = failures + 1, slow + (seconds > SLOW), None
        if RANK == 0:
            print(f"FAILED {name}:" if problems else f"ok {name} ({seconds:.1f} s)", *problems, sep="\n", flush=True)
    return failures
