"""Ranks of the tests of dlaunch.torch: torch_ranks.py <scenario>."""

import datetime
import os
import random
import sys
import threading
import time

import torch
import torch.distributed as dist

import dlaunch
import dlaunch.torch  # noqa: F401: registers the backend
from raises import raises

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT = datetime.timedelta(seconds=60)


def filled(rank, dtype=torch.float32, shape=(3, 4)):
    values = torch.arange(12).reshape(shape) % 5 + rank
    return values.to(dtype)


def equal(actual, expected, what=""):
    assert actual.dtype == expected.dtype and torch.equal(actual, expected), (what, actual, expected)


def special():
    """Cases that torch_differential.py has not: averages, lists of unequal tensors, several tensors in one call."""
    flags = torch.tensor([True, False, RANK == 0, RANK != 0])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False, True, SIZE > 1] and flags.view(torch.uint8).max() == 1
    number = torch.tensor([1 + 2j * RANK, 3], dtype=torch.complex64)
    dist.all_reduce(number)
    assert number.tolist() == [SIZE + 2j * sum(range(SIZE)), 3 * SIZE]
    copies = torch.tensor([RANK + 1j], dtype=torch.complex128)
    dist.broadcast(copies, 1)
    assert copies.tolist() == [1 + 1j]
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()  # its imaginary part is negative, but not in memory
    received = torch.zeros(2)
    dist.broadcast(received if RANK else conjugate.imag, 0)
    assert RANK == 0 or received.tolist() == [-2, 1]
    lazy, target = conjugate.imag, torch.zeros(2, dtype=torch.complex64).conj().imag
    whole = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_gather(whole, lazy)
    dist.reduce_scatter(target, [lazy] * SIZE)
    assert all(part.tolist() == [-2, 1] for part in whole) and target.tolist() == [-2 * SIZE, SIZE]
    line = torch.ones(4)
    dist.all_reduce_coalesced([line[:3], line[1:]])  # elements of both are summed once
    assert (line == SIZE).all(), line
    average = torch.tensor([float(RANK)])
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert average.item() == (SIZE - 1) / 2
    gaps = torch.full((6, 4), float(RANK)).t()[:, ::2]
    assert not gaps.is_contiguous()
    dist.all_reduce(gaps)
    assert (gaps == sum(range(SIZE))).all()
    outputs = [torch.zeros(4, 3).t() for _ in range(SIZE)]
    dist.all_gather(outputs, torch.full((4, 3), float(RANK)).t())
    assert all((output == r).all() for r, output in enumerate(outputs))
    for apart in (0, 1):  # pieces of one tensor, which follow one another in memory or have a gap between them
        whole = torch.zeros(SIZE * (5 + apart))
        pieces = [piece[:5] for piece in whole.chunk(SIZE)]
        dist.all_gather(pieces, torch.full((5,), RANK + 1.0))
        assert all((piece == r + 1).all() for r, piece in enumerate(pieces)) and whole.count_nonzero() == 5 * SIZE
        mine = torch.zeros(5)
        dist.reduce_scatter(mine, pieces)
        assert (mine == SIZE * (RANK + 1)).all()
        dist.all_gather(pieces, pieces[(RANK + 1) % SIZE].fill_(RANK + 2.0))  # an input among the outputs
        assert all((piece == r + 2).all() for r, piece in enumerate(pieces))
        dist.reduce_scatter(pieces[0], pieces)
        assert (pieces[0] == SIZE * (RANK + 2)).all()
        listed = [torch.zeros(5), *pieces[1:]] if apart else list(pieces)
        request = dist.all_gather(listed, torch.full((5,), RANK + 3.0), async_op=True)
        kept = list(listed)
        listed.clear()  # the call has its own list
        request.wait()
        assert all((piece == r + 3).all() for r, piece in enumerate(kept))
        backwards = pieces[::-1]
        dist.all_to_all(backwards, pieces)
        assert whole.count_nonzero() == 5 * SIZE
    dist.all_reduce(torch.zeros(0))
    uneven = [torch.zeros(r + 1) for r in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    assert all((output == r).all() for r, output in enumerate(uneven))
    sends = [(RANK + s) % 3 for s in range(SIZE)]
    receives = [(RANK + r) % 3 for r in range(SIZE)]
    target = torch.zeros(sum(receives), 2)
    source = torch.cat([torch.full((c, 2), float(10 * RANK + s)) for s, c in enumerate(sends)])
    dist.all_to_all_single(target, source, receives, sends)
    equal(target, torch.cat([torch.full((c, 2), float(10 * r + RANK)) for r, c in enumerate(receives)]))
    tensors = [torch.full((n,), float(RANK)) for n in (1, 5, 7)]
    dist.all_reduce_coalesced(tensors)
    assert all((tensor == sum(range(SIZE))).all() for tensor in tensors)
    dist.barrier()
    dist.monitored_barrier(timeout=LIMIT)


def sparse():
    """Sums of sparse tensors are those of dense ones: none, few and repeated entries, and values that are tensors."""
    generator = torch.Generator().manual_seed(5)
    for sparse_dims in (1, 2, 3):
        for dense_dims in (0, 1, 2):
            for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
                shape = [4] * sparse_dims + [3] * dense_dims
                all_dense, own = torch.zeros(shape, dtype=dtype), None
                for rank in range(SIZE):
                    entries = 0 if rank == 1 else 5 * rank + 1  # more than there are places, so they repeat
                    places = torch.randint(0, 4, (sparse_dims, entries), generator=generator)
                    values = torch.randint(0, 9, (entries, *shape[sparse_dims:]), generator=generator).to(dtype)
                    tensor = torch.sparse_coo_tensor(places, values, shape)
                    all_dense += tensor.to_dense()
                    own = tensor if rank == RANK else own
                dist.all_reduce(own)
                assert own.is_sparse and own.sparse_dim() == sparse_dims
                equal(own.to_dense(), all_dense)
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(10 if RANK == 2 else 20, 3).to_sparse()), "shape [")
    table = torch.nn.Embedding(10, 3, sparse=True)
    torch.nn.init.constant_(table.weight, 2.0)
    model = torch.nn.parallel.DistributedDataParallel(table)
    model(torch.tensor([RANK, 9])).sum().backward()
    gradient = table.weight.grad.to_dense()
    assert (gradient[9] == 1).all() and (gradient[:SIZE] == 1 / SIZE).all() and (gradient[SIZE:9] == 0).all(), gradient


def monitored():
    """A monitored barrier names absent ranks, and leaves the group whole."""
    def refused_as(*expected, **options):
        begun = time.monotonic()
        raises(dlaunch.DeadlineExceededError, lambda: dist.monitored_barrier(**options), *expected)
        assert time.monotonic() - begun < 10

    dist.monitored_barrier()
    late = (1, 2)
    if RANK not in late:
        for every in (False, True):
            named = "Ranks 1, 2 failed to pass" if every else "Rank 1 failed to pass monitoredBarrier in 500 ms; so did rank 2"
            expected = (named,) if RANK == 0 else ("successfully reached monitoredBarrier", ": ranks 1, 2 did not come")
            refused_as(*expected, timeout=datetime.timedelta(seconds=0.5), wait_all_ranks=every)
        refused_as("timed out in monitoredBarrier", timeout=datetime.timedelta(0))
    value = torch.ones(3)
    dist.all_reduce(value)
    assert (value == SIZE).all()


def messages():
    """Tags out of order, from anyone, to and from all at once, early and late, large and empty."""
    following, previous = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (1, 1000, 300_000):
        first = dist.isend(torch.full((count,), 1.0 + RANK), following, tag=1)
        second = dist.isend(torch.full((count,), 100.0 + RANK), following, tag=2)
        high, low = torch.zeros(count), torch.zeros(count)
        late = dist.irecv(high, previous, tag=2)
        dist.recv(low, previous, tag=1)
        late.wait()
        first.wait(), second.wait()
        assert (low == 1 + previous).all() and (high == 100 + previous).all(), count
        ops = [dist.P2POp(dist.isend, torch.full((count,), float(RANK)), peer) for peer in range(SIZE) if peer != RANK]
        targets = {peer: torch.zeros(count) for peer in range(SIZE) if peer != RANK}
        ops += [dist.P2POp(dist.irecv, targets[peer], peer) for peer in targets]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        assert all((targets[peer] == peer).all() for peer in targets), count
    dist.barrier()
    if RANK == 0:
        seen = set()
        for _ in range(2 * (SIZE - 1)):
            value = torch.zeros(4)
            source = dist.recv(value)
            assert (value == source).all()
            seen.add(source)
        assert seen == set(range(1, SIZE))
    else:
        dist.send(torch.full((4,), float(RANK)), 0)
        dist.send(torch.full((4,), float(RANK)), 0)
    dist.barrier()
    if RANK == 0:
        value = torch.ones(3)
        dist.send(value, 1, tag=7)
        dist.send(torch.zeros(0), 1, tag=8)
        dist.send(torch.zeros(2), 1, tag=9)
    elif RANK == 1:
        dist.recv(torch.zeros(0), 0, tag=8)
        raises(RuntimeError, lambda: dist.recv(torch.zeros(5), 0, tag=9), "8 bytes", "20 bytes")
        value = torch.zeros(3, dtype=torch.float32)
        assert dist.recv(value, 0, tag=7) == 0 and (value == 1).all()
    dist.barrier()


def missing():
    """A receive from a rank that never sends ends by the group's timeout, also where a receive from anyone has asked that
    rank before; its future and is_completed() end, too."""
    hasty = dist.new_group(timeout=datetime.timedelta(seconds=1))
    value = torch.zeros(4)
    if RANK == 0:
        assert dist.recv(value, group=hasty) == 1
        began = time.monotonic()
        late = dist.irecv(value, 2, group=hasty)
        raises(RuntimeError, late.wait, "timeout")
        assert 1 <= time.monotonic() - began < 30 and late.is_completed() and not late.is_success()
        raises(RuntimeError, dist.irecv(value, group=hasty).get_future().wait, "timeout")
    elif RANK == 1:
        dist.send(value, 0, group=hasty)
    dist.barrier()


def groups():
    """Sub-groups, a group that this rank is no member of, and destroying."""
    pair = dist.new_group([0, SIZE - 1])
    odd = dist.new_group([r for r in range(SIZE) if r % 2], backend="cohort")
    value = torch.full((5,), float(RANK))
    if RANK in (0, SIZE - 1):
        dist.all_reduce(value, group=pair)
        assert (value == SIZE - 1).all()
        assert dist.get_rank(pair) == (0 if RANK == 0 else 1) and dist.get_backend(pair) == "cohort"
        dist.broadcast(value, SIZE - 1, group=pair)
    if RANK % 2:
        one = torch.ones(1)
        dist.all_reduce(one, group=odd)
        assert one.item() == SIZE // 2
    dist.barrier()
    dist.destroy_process_group(pair) if RANK in (0, SIZE - 1) else None
    dist.all_reduce(value)
    if torch.__version__.startswith("1."):  # tells a group nothing, and cannot begin again with a store
        return
    group = dist.distributed_c10d._get_default_group()
    dist.destroy_process_group()
    raises(RuntimeError, lambda: group.allreduce([value]), "destroyed")
    dist.init_process_group("cohort", timeout=LIMIT)
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == SIZE


def futures():
    """Futures of works, several at once, in the order of their ends, with errors."""
    values = [torch.full((1000,), float(RANK)) for _ in range(20)]
    works = [dist.all_reduce(value, async_op=True) for value in values]
    for value, work in zip(values, works):
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        assert (doubled.wait() == 2 * sum(range(SIZE))).all()
        assert (value == sum(range(SIZE))).all()
    late = dist.irecv(torch.zeros(1), (RANK - 1) % SIZE) if SIZE > 1 else None
    value = torch.ones(1)
    dist.all_reduce(value, async_op=True).get_future().wait()  # while the future of an earlier work stays open
    assert value.item() == SIZE
    if late is not None:
        pending = late.get_future()
        dist.all_reduce(value, async_op=True).get_future().wait()
        raises(RuntimeError, lambda: late.wait(datetime.timedelta(milliseconds=50)), "0.05 s")
        dist.barrier()
        dist.send(torch.ones(1), (RANK + 1) % SIZE)
        pending.wait()
        late.wait()
    futures_in_callbacks()
    dist.barrier()


def futures_in_callbacks():
    """A callback waits for the future of a call that it makes, and that of another, which was asked for before."""
    values = [torch.ones(1) for _ in range(3)]
    arrives = dist.irecv(values[2], (RANK - 1) % SIZE, tag=1)
    before = arrives.get_future()

    def chain(future):
        dist.isend(torch.full((1,), 7.0), (RANK + 1) % SIZE, tag=1).wait()
        before.wait()
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    outcome = dist.all_reduce(values[0], async_op=True).get_future().then(chain).wait()
    assert outcome.item() == SIZE * SIZE and values[2].item() == 7


def mismatch():
    """Every rank gets an exception that names both calls and both lines of this file. On a rank that is slow it is the
    first call that fails."""
    value = torch.zeros(8)
    call = (lambda: dist.broadcast(value, 0)) if RANK == 1 else (lambda: dist.all_reduce(value))
    line = call.__code__.co_firstlineno
    began = time.monotonic()
    raises(RuntimeError, lambda: (dist.all_reduce(value), call()), "broadcast", "all_reduce", f"torch_ranks.py:{line}")
    assert time.monotonic() - began < 10


def killed():
    """All others learn it; a slow one is still in the first call."""
    value = torch.zeros(8)

    def call():
        dist.all_reduce(value)
        if RANK == 1:
            os.kill(os.getpid(), 9)
        dist.all_reduce(value)

    raises(RuntimeError, call, "rank 1", "SIGKILL")
    print("survivor learned it", flush=True)


def net_of_ddp():
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(8)))
    return net, torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)


def thrown():
    """A rank ends by an exception: the others' backward pass raises that cause; it once crashed in its place."""
    _, ddp = net_of_ddp()
    for step in range(6):
        loss = ddp(torch.randn(4, 32)).square().mean()
        if RANK == 1 and step == 5:
            raise ValueError("a loss of no worth")
        began = time.monotonic()
        if step < 5:
            loss.backward()
    raises(RuntimeError, loss.backward, "rank 1", "ValueError: a loss of no worth at torch_ranks.py")
    assert time.monotonic() - began < 10
    print("survivor learned it", flush=True)


def unlike():
    """A mismatch amid a backward pass: an exception of both calls and both lines. On a slow rank the barrier fails.
    torch wraps the function of rank 1 in one of another module, as it is deprecated."""
    _, ddp = net_of_ddp()
    loss = ddp(torch.randn(4, 32)).square().mean()
    gather = dist._all_gather_base
    call = (lambda: gather(torch.zeros(SIZE), torch.zeros(1))) if RANK == 1 else (lambda: loss.backward())
    line = call.__code__.co_firstlineno
    raises(RuntimeError, lambda: (dist.barrier(), call()), "all_gather", "all_reduce", f"torch_ranks.py:{line}")


class EndsAfterTheWait:
    """A call that ends between a wait that was too short and the next look."""

    source = None

    def __init__(self, error):
        self._error = error
        self._waited = False

    def done(self):
        return self._waited

    def wait(self, seconds=None):
        self._waited = True
        raise dlaunch.DeadlineExceededError("the operation is still pending")

    def exception(self):
        return self._error


def late():
    """A work has its call's outcome, not that of the last wait for it: its error, or that there is none."""
    from dlaunch.torch.work import Work

    assert Work([EndsAfterTheWait(None)], [torch.zeros(1)]).wait(datetime.timedelta(seconds=1))
    work = Work([EndsAfterTheWait(dlaunch.InvalidArgumentError("calls do not match"))], [torch.zeros(1)])
    raises(dlaunch.InvalidArgumentError, lambda: work.wait(datetime.timedelta(seconds=1)), "do not match")


def pending():
    """The program ends in order while works are under way, with futures and callbacks, whose messages never come."""
    kept = [dist.irecv(torch.zeros(100), (RANK - 1) % SIZE, tag=tag) for tag in range(3)]
    kept[0].get_future().then(lambda future: print("never", flush=True))
    dist.irecv(torch.zeros(100), (RANK - 1) % SIZE, tag=9)  # dropped at once
    value = torch.ones(1000)
    done = dist.all_reduce(value, async_op=True).get_future().then(lambda future: future.value()[0].sum())
    assert done.wait() == SIZE * 1000
    dist.barrier()


def refused():
    raises((ValueError, RuntimeError), lambda: dist.all_reduce(torch.zeros(2, dtype=torch.complex64), dist.ReduceOp.MAX))
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(2, device="meta")), "meta")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(2).to_sparse(), dist.ReduceOp.MAX), "to_dense")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(2, 2).to_sparse_csr()), "to_dense")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(1).expand(4)), "clone")
    raises(ValueError, lambda: dist.broadcast(torch.zeros(2).to_sparse(), 0), "sparse")
    raises(ValueError, lambda: dist.all_reduce(torch.zeros(2, dtype=torch.bool), dist.ReduceOp.AVG), "bool")
    raises(ValueError, lambda: dist.all_gather([torch.zeros(2)], torch.zeros(2)), "list")
    raises(ValueError, lambda: dist.all_to_all_single(torch.zeros(SIZE), torch.zeros(SIZE), [1] * SIZE, [2] * SIZE),
           "split")
    raises(RuntimeError, lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2)), "all_gather")
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == SIZE


def summed_gradient(count, scale, group):
    """A gradient that is summed over the ranks while autograd goes backward, in a hook."""
    weights = torch.ones(count, requires_grad=True)

    def hook(gradient):
        whole = gradient.clone()
        dist.all_reduce(whole, group=group)
        return whole

    weights.register_hook(hook)
    (weights * scale).sum().backward()
    return weights.grad


def threads():
    """Four threads with a group each, which call by themselves and from autograd's hooks, while the main thread trains."""
    seconds = float(os.environ.get("COHORT_TEST_SECONDS", "2"))
    own = [dist.new_group() for _ in range(4)]
    failures = []

    def work(index):
        try:
            numbers = random.Random(index)
            until = time.monotonic() + seconds
            while True:
                value = torch.full((numbers.choice([1, 100, 40_000]),), float(RANK + index))
                request = dist.all_reduce(value, group=own[index], async_op=True)
                if numbers.random() < 0.5:
                    request.get_future().wait()
                else:
                    request.wait()
                assert (value == sum(range(SIZE)) + index * SIZE).all()
                gradient = summed_gradient(numbers.choice([1, 3000]), float(RANK + index), own[index])
                assert (gradient == sum(range(SIZE)) + index * SIZE).all()
                going_on = torch.tensor([time.monotonic() < until])
                dist.all_reduce(going_on, dist.ReduceOp.MIN, group=own[index])
                if not going_on:
                    return
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    while True:
        ddp()
        going_on = torch.tensor([any(worker.is_alive() for worker in workers)])
        dist.all_reduce(going_on, dist.ReduceOp.MAX)
        if not going_on:
            break
    for worker in workers:
        worker.join()
    assert not failures, failures


def ddp():
    """DistributedDataParallel of all ranks' batches ends with the weights of one process that has all of them."""
    net, ddp = net_of_ddp()
    single, _ = net_of_ddp()
    batches = [torch.randn(4, 32, generator=torch.Generator().manual_seed(rank)) for rank in range(SIZE)]
    for model, inputs, parameters in ((ddp, batches[RANK], net), (single, torch.cat(batches), single)):
        optimizer = torch.optim.SGD(parameters.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(net.parameters(), single.parameters()):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (ours - theirs).abs().max()
        assert (ours - theirs).abs().max() < 1e-5


def mesh():
    """Functional collectives over a mesh."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    rows = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("outer", "inner"))
    value = torch.full((SIZE, 2), float(RANK))
    row = [r for r in range(SIZE) if r // (SIZE // 2) == RANK // (SIZE // 2)]
    assert (functional.all_reduce(value, "sum", rows["inner"]) == sum(row)).all()
    assert functional.all_gather_tensor(value, 0, rows["inner"])[::SIZE, 0].tolist() == row
    assert (functional.reduce_scatter_tensor(value, "sum", 0, rows["inner"]) == sum(row)).all()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("cohort", timeout=LIMIT)
    name = sys.argv[1]
    globals()[name]()
    if name not in ("mismatch", "killed", "thrown", "unlike", "pending"):
        dist.destroy_process_group()
    print(f"{name}: done", flush=True)
