"""Ranks of the tests of the store cohort://: torch_store_ranks.py <scenario>."""

import datetime
import os
import random
import sys
import threading
import time

import torch
import torch.distributed as dist

import dlaunch
import dlaunch.torch
from dlaunch.torch.store import Store
from raises import raises

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def meet(store, name):
    """A barrier by a counter."""
    if store.add(f"meet/{name}", 1) == SIZE:
        store.set(f"met/{name}", "")
    store.wait([f"met/{name}"])


def differential():
    """The same random calls on torch's HashStore, which lives in one process, give the same answers. Half of the ranks
    call through C++, as torch does for its groups."""
    theirs = dist.HashStore()
    ours = dist.PrefixStore("through", Store()) if RANK % 2 else Store()
    pick = random.Random(100 + RANK)
    long = b"x" * 130_000
    calls = []
    for _ in range(400):
        key = f"{RANK}/{pick.randrange(6)}"
        value = pick.choice([b"", b"1", b"22", b"\0\xff", long, long[:40_001]])
        calls.append(pick.choice([("set", key, value), ("get", key), ("check", [key]), ("delete_key", key),
                                  ("append", key, value[:3]), ("multi_set", [key, key + "+"], [value, b"7"]),
                                  ("add", key + "#", pick.randrange(-5, 5))]))
    for name, *arguments in calls:
        if name == "get" and not theirs.check([arguments[0]]):
            assert not ours.check([arguments[0]]), arguments
            continue
        expected, actual = (getattr(store, name)(*arguments) for store in (theirs, ours))
        assert actual == expected, (name, arguments[0], str(actual)[:40], str(expected)[:40])
    for key in (f"{RANK}/{i}" for i in range(6)):
        ours.delete_key(key), ours.delete_key(key + "+"), ours.delete_key(key + "#")
    meet(Store(), "deleted")
    if RANK == 0:
        assert ours.num_keys() == 2, ours.num_keys()  # what meet() made: long values left no parts behind


def shared():
    """All ranks see the changes of one; each count is given once; a wait ends by its timeout."""
    store = Store(datetime.timedelta(seconds=60))
    assert store.compare_set("leader", "", str(RANK)).decode() == store.get("leader").decode()
    given = [store.add("tickets", 1) for _ in range(50)]
    assert given == sorted(set(given))
    dist.PrefixStore("list", store).set(str(RANK), repr(given))
    every = [n for r in range(SIZE) for n in eval(store.get(f"list/{r}"))]  # noqa: S307
    assert sorted(every) == list(range(1, 50 * SIZE + 1)), sorted(every)
    threads = [threading.Thread(target=lambda: store.append("appended", f"{RANK};")) for _ in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    meet(store, "appended")
    words = store.get("appended").decode().split(";")[:-1]
    assert sorted(words) == sorted(4 * [str(r) for r in range(SIZE)]), words
    for text in ("same;", 3 * "longer;" * 5000):  # of all ranks; a long one lies in parts
        [store.append(f"appended/{text[:4]}", text) for _ in range(3)]
        meet(store, f"appended/{text[:4]}")
        assert store.get(f"appended/{text[:4]}").decode() == 3 * SIZE * text
    many = [bytes([RANK]) * 100_000] * 8  # readers see a whole value while others replace it
    for value in many:
        store.set("replaced", value)
        seen = store.get("replaced")
        assert len(seen) == 100_000 and seen == seen[:1] * 100_000
    meet(store, "replaced")
    for key in ("replaced", "appended/same", "appended/long"):
        if RANK == 0:
            store.delete_key(key)
    meet(store, "deleted")
    if RANK == 0:
        left = store.num_keys()
        store.set("left", "")
        assert left <= 40, left  # no part of a long value is left
    begin = time.monotonic()
    try:
        store.wait(["never"], datetime.timedelta(seconds=1))
        raise AssertionError("a wait for nothing ended")
    except RuntimeError as error:
        assert "no rank has set the key never" in str(error), error
    assert time.monotonic() - begin >= 1
    raises(RuntimeError, lambda: store.wait(["never"], datetime.timedelta(0)), "within 0 s")
    long = bytes(100_000)
    store.set("long", long)
    meet(store, "long")
    assert store.compare_set("long", "another", "a third") == long
    for call in (lambda: store.add("leader/x" * 200, 1), lambda: store.set("k" * 2000, "v")):
        try:
            call()
            raise AssertionError("a long key was taken")
        except dlaunch.InvalidArgumentError as error:
            assert "1 to 1024 bytes" in str(error), error
    meet(store, "end")


def listeners():
    """The ports that this process listens at, as inodes of its sockets in the kernel's table."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass
    ports = []
    for family in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{family}") as table:
            for line in list(table)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                    ports.append(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def train(**options):
    dist.init_process_group("gloo", **options)
    assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
    value = torch.full((1000,), float(RANK))
    dist.all_reduce(value)
    assert value[0] == sum(range(SIZE))
    half = dist.new_group(list(range(0, SIZE, 2)))
    if RANK % 2 == 0:
        dist.all_reduce(value, group=half)
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert [o["rank"] for o in objects] == list(range(SIZE))
    ports = listeners()
    dist.barrier()
    dist.destroy_process_group()
    return ports


def gloo():
    """Gloo meets without MASTER_ADDR, and nothing of ours or of TCPStore listens."""
    master = int(os.environ.pop("MASTER_PORT"))
    del os.environ["MASTER_ADDR"]
    ports = train(init_method="cohort://")
    assert master not in ports, ports
    assert len(ports) <= 2, ports  # Gloo's own: one a process group


def default():
    """Under dlaunch it is the store of a program that names none."""
    assert int(os.environ["MASTER_PORT"]) not in train()


def named():
    """A program that names a place meets there."""
    os.environ["MASTER_ADDR"] = "localhost"
    ports = train()
    assert (int(os.environ["MASTER_PORT"]) in ports) == (RANK == 0), ports


def backend():
    """The backend cohort over its own store, and a rank that is told another number."""
    try:
        dist.init_process_group("cohort", init_method="cohort://", rank=(RANK + 1) % SIZE, world_size=SIZE)
        raise AssertionError("another rank's number was taken")
    except dlaunch.FailedPreconditionError as error:
        assert "leave rank and world_size out" in str(error), error
    dist.init_process_group("cohort", init_method="cohort://")
    value = torch.ones(10)
    dist.all_reduce(value)
    assert value[0] == SIZE
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(f"rank {RANK}: {sys.argv[1]} done")
