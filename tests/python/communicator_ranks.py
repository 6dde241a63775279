"""Ranks of the tests of dlaunch.Communicator with numpy: communicator_ranks.py <scenario>."""

import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time

import numpy

import dlaunch
from dlaunch import DataType, ReduceOp, _comm
from raises import raises

TYPES = {
    "int8": DataType.INT8, "uint8": DataType.UINT8, "int16": DataType.INT16, "uint16": DataType.UINT16,
    "int32": DataType.INT32, "uint32": DataType.UINT32, "int64": DataType.INT64, "uint64": DataType.UINT64,
    "float16": DataType.FLOAT16, "float32": DataType.FLOAT32, "float64": DataType.FLOAT64,
}


def line_here():
    return f"{os.path.basename(__file__)}:{sys._getframe(1).f_lineno}"


def operations(world):
    """Every operation on every type, beside numpy's own result."""
    rank, size = world.rank, world.size
    for name in TYPES:
        mine = (numpy.arange(12) % 5 + rank).astype(name)
        everyone = [(numpy.arange(12) % 5 + r).astype(name) for r in range(size)]
        out = numpy.zeros_like(mine)
        world.all_reduce(mine, out)
        assert (out == sum(everyone[1:], everyone[0])).all(), (name, out)
        in_place = mine.copy()
        world.all_reduce(in_place, op="max")
        assert (in_place == numpy.maximum.reduce(everyone)).all(), name
        out = numpy.zeros_like(mine)
        world.reduce(mine, out, ReduceOp.MIN, root=size - 1)
        assert rank != size - 1 or (out == numpy.minimum.reduce(everyone)).all(), name
        copy = mine.copy()
        world.broadcast(copy, root=1)
        assert (copy == everyone[1]).all(), name
        together = numpy.zeros(12 * size, name)
        world.all_gather(mine, together)
        assert (together == numpy.concatenate(everyone)).all(), name
        gathered = numpy.zeros(12 * size, name) if rank == 2 else None
        world.gather(mine, gathered, root=2)
        assert rank != 2 or (gathered == together).all(), name
        part = numpy.zeros(12, name)
        world.scatter(together if rank == 0 else None, part, root=0)
        assert (part == mine).all(), name
        world.reduce_scatter(numpy.tile(mine, size), part)
        assert (part == sum(everyone[1:], everyone[0])).all(), name
        blocks = numpy.repeat(numpy.arange(size) + 10 * rank, 3).astype(name)
        swapped = numpy.zeros_like(blocks)
        world.all_to_all(blocks, swapped)
        assert (swapped == numpy.repeat(numpy.arange(size) * 10 + rank, 3).astype(name)).all(), name


def unequal(world):
    """The forms with a count for each rank."""
    rank, size = world.rank, world.size
    counts = [r + 1 for r in range(size)]
    mine = numpy.full(counts[rank], rank, numpy.int32)
    expected = numpy.concatenate([numpy.full(c, r, numpy.int32) for r, c in enumerate(counts)])
    out = numpy.zeros(sum(counts), numpy.int32)
    world.all_gather_v(mine, out, counts)
    assert (out == expected).all()
    out = numpy.zeros(sum(counts), numpy.int32) if rank == 0 else None
    world.gather_v(mine, out, counts if rank == 0 else None, root=0)
    assert rank != 0 or (out == expected).all()
    part = numpy.zeros(counts[rank], numpy.int32)
    world.scatter_v(expected if rank == 0 else None, counts if rank == 0 else None, part, root=0)
    assert (part == rank).all()
    world.reduce_scatter_v(expected, counts, part)
    assert (part == rank * size).all()
    sends = [(rank + s) % 3 for s in range(size)]
    receives = [(rank + r) % 3 for r in range(size)]
    source = numpy.concatenate([numpy.full(c, 100 * rank + s) for s, c in enumerate(sends)]).astype(numpy.float64)
    target = numpy.zeros(sum(receives))
    world.all_to_all_v(source, sends, target, receives)
    assert (target == numpy.concatenate([numpy.full(c, 100 * r + rank) for r, c in enumerate(receives)])).all()


def reductions(world):
    """Every operator, bool and complex elements, and one of the program."""
    rank, size = world.rank, world.size
    base = numpy.array([1, 2, 3, 7], numpy.int32)
    everyone = [base + r for r in range(size)]
    cases = {"sum": numpy.add, "product": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum,
             "band": numpy.bitwise_and, "bor": numpy.bitwise_or, "bxor": numpy.bitwise_xor}
    for name, function in cases.items():
        out = numpy.zeros_like(base)
        world.all_reduce(everyone[rank], out, op=name)
        assert (out == function.reduce(everyone)).all(), name
    average = numpy.full(3, float(rank))
    world.all_reduce(average, op="avg")
    assert (average == (size - 1) / 2).all()
    scaled = numpy.ones(3)
    world.all_reduce(scaled, op="premulsum", factor=float(rank))
    assert (scaled == sum(range(size))).all()
    flags = numpy.array([True, False, rank == 0, rank != 0])
    world.all_reduce(flags)
    assert flags.tolist() == [True, False, True, size > 1] and flags.view(numpy.uint8).max() == 1
    number = numpy.array([1 + 1j * rank, 2 - 1j], numpy.complex64)
    world.all_reduce(number)
    assert number.tolist() == [size + 1j * sum(range(size)), size * (2 - 1j)]
    raises(ValueError, lambda: world.all_reduce(number, op="product"), "complex")
    raises(ValueError, lambda: world.all_reduce(flags, op="avg"), "bool")

    def larger(out, a, b):
        numpy.maximum(*(numpy.frombuffer(view, numpy.float32) for view in (a, b)),
                      out=numpy.frombuffer(out, numpy.float32))

    values = numpy.array([rank, -rank, 5], numpy.float32)
    world.all_reduce(values, op=dlaunch.UserOp(larger))
    assert values.tolist() == [size - 1, 0, 5]


def messages(world):
    """send, recv, self, async, and DLPack's and the buffer protocol's memory."""
    rank, size = world.rank, world.size
    source, target = numpy.full(100_000, rank, numpy.float32), numpy.zeros(100_000, numpy.float32)
    sending = world.send(source, (rank + 1) % size, async_op=True)
    world.recv(target, (rank - 1) % size)
    sending.wait()
    assert (target == (rank - 1) % size).all() and sending.done() and sending.exception() is None
    text = bytearray(b"rank %d" % rank)
    world.broadcast(text, root=1)
    assert text == b"rank 1"
    memory = (ctypes.c_double * 4)(*[rank] * 4)
    world.all_reduce((ctypes.addressof(memory), 4, "float64", memory))
    assert list(memory) == [sum(range(size))] * 4

    class Exporter:
        def __init__(self, array):
            self.__dlpack__ = array.__dlpack__

    array = numpy.full(5, rank, numpy.int64)
    exporter = Exporter(array)
    world.all_reduce(exporter)
    assert (array == sum(range(size))).all()


def exchange(world):
    """Messages in both directions, in any order, to itself too; with options; what is refused."""
    rank, size = world.rank, world.size
    for count in (1, 300_000):
        sent = [numpy.full(count, 10 * rank + peer, numpy.float32) for peer in range(size)]
        received = [numpy.zeros(count, numpy.float32) for _ in range(size)]
        peers = list(range(size)) if rank % 2 else list(reversed(range(size)))
        work = world.exchange([(sent[peer], peer) for peer in peers], [(received[peer], peer) for peer in peers],
                              timeout=60, async_op=True)
        del sent
        work.wait()
        assert all((array == 10 * peer + rank).all() for peer, array in enumerate(received)), (count, received)
        # two for one peer keep their order
        two = numpy.zeros((2, count), numpy.float32)
        following, previous = (rank + 1) % size, (rank - 1) % size
        world.exchange([(numpy.full(count, 1 + i, numpy.float32), following) for i in range(2)],
                       [(two[i], previous) for i in range(2)])
        assert (two[0] == 1).all() and (two[1] == 2).all()
    world.exchange([], [])
    raises(dlaunch.InvalidArgumentError, lambda: world.exchange([(numpy.zeros(1), size)], []), "peer")
    raises(TypeError, lambda: world.exchange([numpy.zeros(1)], []), "pair")
    raises(TypeError, lambda: world.exchange([]), "receives")
    raises(TypeError, lambda: world.all_reduce((0, 0, "float32", None, 0, 0)), "device")
    world.barrier()


def device(world):
    """Memory that is said to be a CUDA device's: through host memory, since there is no NCCL. A library that stands in for
    CUDA has it in host memory."""
    rank, size = world.rank, world.size
    array = numpy.full(1000, rank, numpy.float32)
    memory = (array.ctypes.data, array.size, "float32", array, 0)
    world.all_reduce(memory, stream=0)
    assert (array == sum(range(size))).all()
    out = numpy.zeros(size * 1000, numpy.float32)
    work = world.all_gather(memory, (out.ctypes.data, out.size, "float32", out, 0), async_op=True, timeout=60)
    work.wait()
    assert (out == sum(range(size))).all()
    raises(dlaunch.InvalidArgumentError, lambda: world.all_gather(memory, out), "memory")
    raises(dlaunch.InvalidArgumentError, lambda: world.all_reduce((*memory[:4], 99)), "device")


def groups(world):
    """split, subgroup, duplicate, close, and calls of several groups at once."""
    rank, size = world.rank, world.size
    halves = world.split(rank % 2, key=-rank)
    members = [r for r in range(size) if r % 2 == rank % 2][::-1]
    assert list(halves.members) == members and halves.rank == members.index(rank)
    none = world.split(0 if rank == 0 else -1)
    assert (none is None) == (rank != 0)
    pair = world.subgroup([0, size - 1]) if rank in (0, size - 1) else None
    with world.duplicate() as twin:
        values = [numpy.full(10, rank), numpy.full(10, rank)]
        works = [world.all_reduce(values[0], async_op=True), twin.all_reduce(values[1], op="max", async_op=True)]
        for work in works:
            work.wait()
        assert (values[0] == sum(range(size))).all() and (values[1] == size - 1).all()
    raises(dlaunch.FailedPreconditionError, twin.barrier, "closed")
    if pair is not None:
        one = numpy.ones(1)
        pair.all_reduce(one)
        assert one[0] == 2
    world.barrier()
    assert "all_reduce" in world.explain("all_reduce", 1024) or world.explain("all_reduce", 1024)


def refused(world):
    """Bad arguments raise at once, name the argument, and leave the group as it was."""
    rank = world.rank
    good = numpy.zeros(4, numpy.float32)
    raises(TypeError, lambda: world.all_reduce("text"), "input")
    raises(TypeError, lambda: world.all_reduce(None), "input is None")
    raises(TypeError, lambda: world.broadcast(None), "buffer is None")
    raises(TypeError, lambda: world.all_reduce(), "input")
    raises(TypeError, lambda: world.all_reduce(good, colour=1), "colour")
    raises(TypeError, lambda: world.all_reduce(good, good, "sum", 3), "at most 3")
    raises(TypeError, lambda: world.all_reduce(numpy.zeros(2, "U4")), "format")
    raises(TypeError, lambda: world.all_reduce(numpy.zeros(2, ">f4")), ">f")
    raises(ValueError, lambda: world.all_reduce(numpy.zeros((4, 4))[:, 1]), "contiguous")
    raises(ValueError, lambda: world.all_reduce(b"constant"), "output")
    raises(ValueError, lambda: world.all_reduce(good, op="mean"), "mean", "avg")
    raises(ValueError, lambda: world.all_reduce(good, numpy.zeros(3, numpy.float32)), "all_reduce")
    raises(ValueError, lambda: world.broadcast(good, root=world.size), "root")
    raises(ValueError, lambda: world.all_reduce(good, timeout=float("nan")), "nan")
    raises(ValueError, lambda: world.all_reduce(good, timeout=-1), "-1")
    raises(dlaunch.InvalidArgumentError, lambda: world.send(good, -1), "send")
    raises(ValueError, lambda: world.all_reduce(good, determinism="strict"), "strict")
    raises(TypeError, lambda: dlaunch.Communicator(3), "Runtime")
    good[:] = rank
    world.all_reduce(good)
    assert (good == sum(range(world.size))).all()


def mismatch(world):
    """A rank that calls another operation: every rank gets an error that names both calls and both lines."""
    data = numpy.zeros(8, numpy.float32)
    began = time.monotonic()
    if world.rank == 1:
        here, other = f"{line_here()[:-3]}", "all_reduce"
        error = raises(dlaunch.FailedPreconditionError, lambda: world.broadcast(data, 0), other, "broadcast")
    else:
        here, other = f"{line_here()[:-3]}", "broadcast"
        error = raises(dlaunch.FailedPreconditionError, lambda: world.all_reduce(data), other, "all_reduce")
    assert time.monotonic() - began < 10
    lines = [int(part.split(":")[1].split()[0].rstrip(",;.)")) for part in str(error).split("communicator_ranks.py")[1:]]
    source = open(__file__, encoding="utf-8").read().splitlines()
    named = {source[line - 1].strip() for line in lines}
    assert any("broadcast(data, 0)" in text for text in named) and any("all_reduce(data)" in text for text in named), (
        here, str(error))
    raises(dlaunch.FailedPreconditionError, lambda: world.all_reduce(data), "broadcast")


def threads(world):
    """Four threads with a group each, and a group that two threads use, in the order of a lock."""
    seconds = float(os.environ.get("COHORT_TEST_SECONDS", "2"))
    own = [world.duplicate() for _ in range(4)]
    failures = []

    def work(index):
        try:
            numbers = random.Random(index)
            group, until = own[index], time.monotonic() + seconds
            while True:
                count = numbers.choice([1, 3, 100, 5000, 70_000])
                data = numpy.full(count, world.rank + index, numpy.float64)
                if numbers.random() < 0.5:
                    group.all_reduce(data)
                else:
                    group.all_reduce(data, async_op=True).wait()
                assert (data == sum(range(world.size)) + index * world.size).all()
                going_on = numpy.array([time.monotonic() < until])
                group.all_reduce(going_on, op="min")
                if not going_on[0]:
                    return
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def dropped(world):
    """A work that is dropped keeps its memory until it is done."""
    for _ in range(50):
        data = numpy.full(200_000, world.rank, numpy.int64)
        watch = sys.getrefcount(data)
        work = world.all_reduce(data, async_op=True)
        assert sys.getrefcount(data) > watch
        del work, data
        gc.collect()
    one = numpy.ones(1)
    world.all_reduce(one)
    assert one[0] == world.size


def killed(world):
    """The others learn within a second who died, and in which call they were: a slow one is still in the first."""
    data = numpy.zeros(1)

    def call():
        world.all_reduce(data)
        if world.rank == 1:
            os.kill(os.getpid(), 9)
        world.all_reduce(data)

    error = raises(dlaunch.UnavailableError, call, "rank 1", "SIGKILL")
    print("survivor:", error, flush=True)


def lost_in_thought():
    time.sleep(600)


def stuck(world):
    """Rank 1 never comes. The launcher's report says where it is instead."""
    world.barrier()
    if world.rank == 1:
        lost_in_thought()
    world.all_reduce(numpy.zeros(1), timeout=5)


def late(world):
    """A wait that expires leaves the call pending; an operation's own timeout fails it, and names who is absent."""
    data = numpy.ones(3)
    twin = world.duplicate()
    if world.rank == 0:
        work = world.all_reduce(data, async_op=True)
        raises(dlaunch.DeadlineExceededError, lambda: work.wait(0.05))
        assert not work.done()
        world.send(numpy.zeros(1), 1)
        work.wait()
        raises(TimeoutError, lambda: twin.all_reduce(data, timeout=0.3), "all_reduce")
    else:
        if world.rank == 1:
            world.recv(numpy.zeros(1), 0)
        world.all_reduce(data)
    world.barrier()
    assert (data == world.size).all()
    if world.rank != 0:
        raises(dlaunch.Error, twin.barrier, "all_reduce")  # the news of that, or a mismatch where it comes first


def interrupted(world):
    """Ctrl-C ends a wait; the operation stays pending, and ends later."""
    data = numpy.zeros(4)
    if world.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        work = world.recv(data, 1, async_op=True)
        began = time.monotonic()
        raises(KeyboardInterrupt, work.wait)
        assert time.monotonic() - began < 5 and not work.done()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        raises(KeyboardInterrupt, world.barrier)
        world.send(data, 1)
        work.wait()
        assert (data == 7).all()
    elif world.rank == 1:
        world.recv(data, 0)
        world.send(numpy.full(4, 7.0), 0)
    if world.rank != 0:
        world.barrier()
    world.barrier()  # rank 0 leaves only when the barrier is over whose wait was interrupted


def tagged(world):
    """Messages with tags: out of order, before and after their receive, from anyone, of another size, empty."""
    rank, size = world.rank, world.size
    channel = _comm.Messages(world)
    following, previous = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 500_000):
        works = [channel.send(numpy.full(count, rank + 10.0 * tag), following, tag) for tag in range(5)]
        if count == 1000:
            world.barrier()  # they are here before they are asked for
        targets = {tag: numpy.zeros(count) for tag in range(5)}
        for tag in (3, 1, 4, 0, 2):
            work = channel.receive(targets[tag], previous, tag)
            work.wait()
            assert (targets[tag] == previous + 10 * tag).all() and work.source == previous, (count, tag)
        for work in works:
            work.wait()
    posted = [(numpy.zeros(3), peer) for peer in range(size) for _ in range(3)]
    works = [channel.receive(target, peer, 5) for target, peer in posted]
    for peer in range(size):  # to itself too
        for number in range(3):
            channel.send(numpy.full(3, 100.0 * rank + number), peer, 5)
    for number, (work, (target, peer)) in enumerate(zip(works, posted)):
        work.wait()
        assert (target == 100 * peer + number % 3).all()
    world.barrier()
    if rank == 0:
        counts = dict.fromkeys(range(1, size), 0)
        for _ in range(4 * (size - 1)):
            target = numpy.zeros(2)
            work = channel.receive(target, None, 6)
            work.wait()
            assert (target == [work.source, counts[work.source]]).all()
            counts[work.source] += 1
        assert set(counts.values()) == {4}
        short = channel.receive(numpy.zeros(2), 1, 7)
        raises(dlaunch.FailedPreconditionError, short.wait, "24 bytes", "16")
        exact = numpy.zeros(3)
        channel.receive(exact, 1, 7).wait()
        assert (exact == 8).all()
    else:
        for number in range(4):
            channel.send(numpy.array([rank, number], float), 0, 6).wait()
        if rank == 1:
            channel.send(numpy.full(3, 9.0), 0, 7).wait()
            channel.send(numpy.full(3, 8.0), 0, 7).wait()
    raises(ValueError, lambda: channel.send(numpy.zeros(1), None), "one peer")
    raises(dlaunch.InvalidArgumentError, lambda: channel.receive(numpy.zeros(1), size).wait(), str(size))
    raises(ValueError, lambda: channel.receive(numpy.zeros(1), -1), "-1")
    world.barrier()
    open_receive = channel.receive(numpy.zeros(1), previous, 8)
    del channel
    raises(dlaunch.Error, open_receive.wait, "destroyed")


def forked(world):
    """A forked child is refused; its parent goes on."""
    data = numpy.ones(2)
    world.all_reduce(data)
    previous = (world.rank - 1) % world.size
    messages = _comm.Messages(world)
    received = numpy.zeros(2)
    work = messages.receive(received, previous, 0, 60)
    child = os.fork()
    if child == 0:
        try:
            raises(dlaunch.FailedPreconditionError, lambda: world.all_reduce(data), "fork")
            raises(dlaunch.FailedPreconditionError, messages.send(data, previous, 0, 60).wait, "fork")
            raises(dlaunch.FailedPreconditionError, messages.receive(data, previous, 0, 60).wait, "fork")
            raises(dlaunch.FailedPreconditionError, work.wait, "fork")
            assert not work.done()
            del messages, work
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    world.barrier()  # no message before the last child has ended
    messages.send(numpy.full(2, float(world.rank)), (world.rank + 1) % world.size, 0, 60).wait()
    work.wait()
    assert (received == previous).all()
    world.all_reduce(data)
    assert (data == world.size**2).all()


def variables(world):
    """The job's variables: each number is given once, one rank wins, all see what one set, waits end."""
    call = dlaunch.runtime().variable
    given = [call("add", "tickets", amount=2)[2] for _ in range(25)]
    call("set", f"given/{world.rank}", value=repr(given).encode())
    every = [n for r in range(world.size) for n in eval(call("get", f"given/{r}")[1])]  # noqa: S307
    assert sorted(every) == list(range(2, 50 * world.size + 1, 2)), every
    winner = call("compare_set", "winner", value=str(world.rank).encode())[1]
    assert call("compare_set", "winner", value=b"late")[1] == winner
    for r in range(world.size):  # one after the other, by waiting for the one before
        if r == world.rank:
            assert r == 0 or call("get", f"turn/{r - 1}") == (True, b"", 0)
            call("set", f"turn/{r}")
    begin = time.monotonic()
    assert call("get", "never", timeout=0.3) is None and 0.3 <= time.monotonic() - begin
    raises(dlaunch.InvalidArgumentError, lambda: call("add", "winner", amount=2**62) and call("add", "winner", amount=2**62),
           "64 bits")
    raises(dlaunch.InvalidArgumentError, lambda: call("set", "x", value=bytes(50_000)), "49152")
    raises(dlaunch.InvalidArgumentError, lambda: call("set", ""), "1 to 1024 bytes")
    raises(ValueError, lambda: call("swap", "x"), "swap is no call")
    world.barrier()
    deleted = [call("delete", f"turn/{world.rank}")[0] for _ in range(2)]
    assert deleted == [True, False]
    world.barrier()
    assert call("count")[2] == 2 + world.size


if __name__ == "__main__":
    globals()[sys.argv[1]](dlaunch.init())
    dlaunch.finalize()
    print(f"{sys.argv[1]}: done", flush=True)
