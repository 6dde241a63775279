"""The communicators behind torch's groups: each is made of the world's, by its list of ranks."""

import os
import threading
import time

import torch.distributed as dist

from dlaunch import _comm, job
from dlaunch.communicator import Communicator
from dlaunch.torch.store import Store

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
            is_job = _is_job(store, rank, size, is_default)
            _runtime = job.runtime(progress_thread=True, **({} if is_job else _meeting(store, rank, size)))
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


def _is_job(store, rank, size, everyone_asks):
    """Whether the processes of this world are the ranks of the job, each in its place. Other processes of a rank
    (torch.multiprocessing.spawn), and those of another launcher, are worlds of their own. One of them may have the number
    of its rank, and its world the size of the job, so all processes of a world decide together."""
    if not os.environ.get("COHORT_AGENT"):
        return size == 1
    in_place = job.place() == (rank, size)
    if _is_of_job(store):  # only ranks take it
        return in_place
    if not everyone_asks:
        return in_place and not job.started_by_rank()
    counted = store.add("cohort/places", (1 << 32) + in_place)
    if counted >> 32 == size:
        store.set("cohort/world", "job" if counted & 0xFFFFFFFF == size else "own")
    return store.get("cohort/world") == b"job"


def _is_of_job(store):
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return isinstance(store, Store)


def _meeting(store, rank, size):
    """How the processes of a world of their own meet: through torch's store."""

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
