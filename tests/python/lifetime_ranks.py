"""Ranks that open their runtime again, and whose forked children end by themselves: lifetime_ranks.py <scenario>."""

import gc
import multiprocessing
import os
import signal
import sys
import time

import numpy

import dlaunch
from raises import raises


def children(world):
    """Forked children that end as a program does, amid the parent's calls and with its objects: soon, and in order."""
    data = numpy.ones(300_000)
    group = world.split(world.rank % 2)
    for first in (int, dlaunch.finalize, group.close, gc.collect):
        work = world.all_reduce(data, async_op=True)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it where it hangs
            first()
            sys.exit(0)
        begin = time.monotonic()
        work.wait()
        assert os.waitpid(child, 0)[1] == 0, first
        assert time.monotonic() - begin < 10
        group.barrier()
    process = multiprocessing.get_context("fork").Process(target=len, args=((),), daemon=True)
    process.start()
    process.join(10)
    assert process.exitcode == 0
    world.barrier()


def reopened(world):
    """finalize() and init(), as often as a program likes; what belongs to an earlier runtime does no harm."""
    kept = []
    for k in range(4):
        data = numpy.full(1000, world.rank + k)
        world.all_reduce(data)
        assert (data == world.size * (world.size - 1) // 2 + k * world.size).all()
        assert dlaunch.runtime().variable("add", "count", amount=1)[2] <= world.size
        kept.append(world)
        kept = kept[-2:]
        raises(dlaunch.FailedPreconditionError, dlaunch.Runtime, "has a runtime already")
        dlaunch.finalize()
        raises(dlaunch.FailedPreconditionError, world.barrier, "finalized")
        dlaunch.finalize()
        world = dlaunch.init()
    world.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]](dlaunch.init())
    dlaunch.finalize()
    print(f"{sys.argv[1]}: done", flush=True)
