"""The communicators behind torch's groups: each is made of the world's, by its list of ranks."""

import os
import threading
import time

import torch.distributed as dist

from cohort import _comm, job
from cohort.communicator import Communicator

_lock = threading.Lock()
_runtime = _world = None
_ABSENT = "no value of cohort's"


def communicator_of(options):
    """A communicator for a new group. Its members make their common groups in the same order, as torch.distributed
    demands, so that no message is needed."""
    world = _world_of(options)
    ranks = list(options.global_ranks_in_group) or list(range(world.size))
    return world.subgroup(ranks)


def _world_of(options):
    global _runtime, _world
    is_default = not options.global_ranks_in_group
    rank, size = (options.group_rank, options.group_size) if is_default else (dist.get_rank(), dist.get_world_size())
    with _lock:
        if _runtime is None or _runtime.finalized:
            store = options.store if is_default else dist.distributed_c10d._get_default_store()
            _runtime = job.runtime(progress_thread=True, **_meeting(store, rank, size))
            _world = Communicator(_runtime)
        if (_world.rank, _world.size) != (rank, size):
            raise _comm.FailedPreconditionError(
                f"init_process_group was told rank {rank} of {size}, and this process has joined as rank {_world.rank} of "
                f"{_world.size}: leave rank and world_size to the environment")
        return _world


def _has(store, key):
    if hasattr(store, "check"):
        return store.check([key])
    return store.compare_set(key, _ABSENT, _ABSENT) != _ABSENT.encode()  # PyTorch 1.13: changes nothing


def _meeting(store, rank, size):
    """A rank of dlaunch takes its place in the job. Processes of another launcher, and those that a rank has started to be
    a world of their own (torch.multiprocessing.spawn), meet through torch's store."""
    if job.place() == (rank, size) or (size == 1 and not os.environ.get("COHORT_AGENT")):
        return {}

    def put(key, value):
        store.set("cohort/" + key, value)

    def get(key, seconds):
        # store.wait would keep other threads from the store meanwhile
        until = time.monotonic() + seconds
        while not _has(store, "cohort/" + key):
            if time.monotonic() > until:
                raise TimeoutError(f"no rank has put {key} into the store of torch.distributed in time")
            time.sleep(0.002)
        return store.get("cohort/" + key)

    return {"put": put, "get": get, "rank": rank, "world_size": size}
