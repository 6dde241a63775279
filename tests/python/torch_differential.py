"""Ranks of a test of dlaunch.torch: every collective of torch.distributed on every type and shape, beside Gloo.

Each rank can make every rank's values, so a plain formula gives the expected results, also where Gloo refuses."""

import datetime
import functools
import os

import torch
import torch.distributed as dist

import dlaunch.torch  # noqa: F401: registers the backend

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
         torch.int64, torch.bool, torch.complex64, torch.complex128]
REDUCTIONS = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
              "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
# name: (shape, how a contiguous tensor of it gets this layout)
LAYOUTS = {
    "plain": ((3, 4), lambda t: t),
    "long": ((70_001,), lambda t: t),
    "empty": ((0, 3), lambda t: t),
    "scalar": ((), lambda t: t),
    "offset": ((5,), lambda t: torch.cat([t.new_zeros(3), t])[3:]),
    "transposed": ((4, 6), lambda t: t.t().contiguous().t()),
    "strided": ((6, 5), lambda t: torch.stack([t, t.new_zeros(t.shape)], -1)[..., 0]),
}


def values(rank, dtype, shape, salt=0):
    """Small numbers, whose sums and products are exact in every order and type."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    numbers = torch.randint(0, 3, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(numbers.double(), torch.randint(0, 3, shape, generator=generator).double()).to(dtype)
    return numbers.to(dtype)


def ops_for(dtype):
    if dtype.is_complex:
        return ("SUM",)
    if dtype.is_floating_point or dtype == torch.bool:
        return ("SUM", "PRODUCT", "MIN", "MAX")
    return tuple(REDUCTIONS)


def reduced(tensors, op):
    if tensors[0].dtype == torch.bool:
        op = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}[op]
    return functools.reduce(REDUCTIONS[op], tensors)


class Case:
    """One call: its group, type and layout. Calls return the tensors that it wrote."""

    def __init__(self, members, dtype, layout, asynchronous):
        self.members, self.dtype, self.asynchronous = members, dtype, asynchronous
        self.shape, self.lay = LAYOUTS[layout]
        self.size, self.me = len(members), members.index(RANK)

    def of(self, rank, salt=0):
        return values(rank, self.dtype, self.shape, salt)

    def mine(self, salt=0):
        return self.lay(self.of(RANK, salt))

    def blank(self):
        return self.lay(torch.zeros(self.shape, dtype=self.dtype))

    def run(self, call, *arguments, **options):
        work = call(*arguments, async_op=self.asynchronous, **options)
        if self.asynchronous:
            work.wait()


def all_reduce(case, group, op):
    value = case.mine()
    case.run(dist.all_reduce, value, getattr(dist.ReduceOp, op), group=group)
    return [value], [reduced([case.of(r) for r in case.members], op)]


def reduce(case, group, op):
    value, root = case.mine(), case.size // 2
    case.run(dist.reduce, value, case.members[root], getattr(dist.ReduceOp, op), group=group)
    return ([value], [reduced([case.of(r) for r in case.members], op)]) if case.me == root else ([], [])


def broadcast(case, group):
    value, root = case.mine(), case.members[-1]
    case.run(dist.broadcast, value, root, group=group)
    return [value], [case.of(root)]


def all_gather(case, group):
    outputs, source = [case.blank() for _ in case.members], case.mine()
    case.run(dist.all_gather, outputs, source, group=group)
    return outputs + [source], [case.of(r) for r in case.members] + [case.of(RANK)]


def all_gather_into_tensor(case, group):
    output = torch.zeros((case.size, *case.shape), dtype=case.dtype)
    case.run(dist.all_gather_into_tensor, output, case.mine(), group=group)
    return [output], [torch.stack([case.of(r) for r in case.members])]


def gather(case, group):
    root = case.members[0]
    outputs = [case.blank() for _ in case.members] if RANK == root else None
    case.run(dist.gather, case.mine(), outputs, root, group=group)
    return (outputs, [case.of(r) for r in case.members]) if outputs else ([], [])


def gather_single(case, group):
    if not hasattr(dist, "gather_single"):  # before PyTorch 2.15
        return [], []
    root = case.members[0]
    output = torch.zeros((case.size, *case.shape), dtype=case.dtype) if RANK == root else None
    case.run(dist.gather_single, case.mine(), output, root, group=group)
    return ([output], [torch.stack([case.of(r) for r in case.members])]) if RANK == root else ([], [])


def scatter(case, group):
    root, output = case.members[-1], case.blank()
    inputs = [case.mine(salt) for salt in range(case.size)] if RANK == root else None
    case.run(dist.scatter, output, inputs, root, group=group)
    return [output], [case.of(root, case.me)]


def reduce_scatter(case, group, op):
    output = case.blank()
    case.run(dist.reduce_scatter, output, [case.mine(salt) for salt in range(case.size)], getattr(dist.ReduceOp, op),
             group=group)
    return [output], [reduced([case.of(r, case.me) for r in case.members], op)]


def reduce_scatter_tensor(case, group, op):
    output = case.blank()
    source = torch.cat([case.of(RANK, salt).reshape(case.shape or 1) for salt in range(case.size)])
    case.run(dist.reduce_scatter_tensor, output, source, getattr(dist.ReduceOp, op), group=group)
    return [output], [reduced([case.of(r, case.me) for r in case.members], op)]


def all_to_all(case, group):
    outputs = [case.blank() for _ in case.members]
    case.run(dist.all_to_all, outputs, [case.mine(salt) for salt in range(case.size)], group=group)
    return outputs, [case.of(r, case.me) for r in case.members]


def all_to_all_single(case, group):
    output = torch.zeros((case.size, *case.shape), dtype=case.dtype)
    source = torch.stack([case.of(RANK, salt) for salt in range(case.size)])
    case.run(dist.all_to_all_single, output, source, group=group)
    return [output], [torch.stack([case.of(r, case.me) for r in case.members])]


def all_to_all_uneven(case, group):
    """Rank r sends s + 1 rows to rank s."""
    rows = [torch.stack([case.of(r, case.me)] * (case.me + 1)) for r in case.members]
    source = torch.cat([torch.stack([case.of(RANK, s)] * (s + 1)) for s in range(case.size)])
    expected = torch.cat(rows)
    output = torch.zeros(expected.shape, dtype=case.dtype)
    case.run(dist.all_to_all_single, output, source, [case.me + 1] * case.size, [s + 1 for s in range(case.size)],
             group=group)
    return [output], [expected]


def send_recv(case, group):
    following, previous = case.members[(case.me + 1) % case.size], case.members[case.me - 1]
    output = case.blank()
    requests = [dist.isend(case.mine(), following, group=group), dist.irecv(output, previous, group=group)]
    for request in requests:
        request.wait()
    return [output], [case.of(previous)]


REDUCING = (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)
MOVING = (broadcast, all_gather, all_gather_into_tensor, gather, gather_single, scatter, all_to_all,
          all_to_all_single, all_to_all_uneven, send_recv)


def gloo_serves(call, layout):
    """Gloo of PyTorch 2.11 takes a tensor with gaps for its first bytes, crashes in a reduce_scatter of scalars, and
    refuses lists in reduce_scatter. PyTorch 1.13's crashes on empty tensors."""
    if layout == "empty" and torch.__version__.startswith("1."):
        return False
    if layout in ("transposed", "strided") or call is reduce_scatter:
        return False
    return layout != "scalar" or call is not reduce_scatter_tensor


def check(call, members, groups, dtype, layout, asynchronous, *op):
    """Returns whether Gloo served the call too."""
    what = (call.__name__, dtype, layout, *op)
    case = Case(members, dtype, layout, asynchronous)
    actual, expected = call(case, groups["cohort"], *op)
    assert len(actual) == len(expected), what
    for ours, right in zip(actual, expected):
        assert ours.dtype == right.dtype and ours.shape == right.shape and torch.equal(ours, right), (what, ours, right)
    if not gloo_serves(call, layout):
        return False
    try:
        theirs, _ = call(case, groups["gloo"], *op)
    except (RuntimeError, ValueError):
        return False  # on all members alike: Gloo has no such call, or not for this memory
    for ours, other in zip(actual, theirs):
        assert torch.equal(ours, other), (what, ours, other)
    return True


def objects(group, members):
    me = members.index(RANK)
    gathered = [None] * len(members)
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * RANK}, group=group)
    assert gathered == [{"rank": r, "text": "x" * r} for r in members]
    listed = [("of", RANK), None] if me == 1 else [None, None]
    dist.broadcast_object_list(listed, members[1], group=group)
    assert listed == [("of", members[1]), None]
    collected = [None] * len(members) if me == 0 else None
    dist.gather_object(RANK, collected, members[0], group=group)
    assert collected is None or collected == list(members)
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in members] if me == 0 else None, members[0], group=group)
    assert received == [f"for {RANK}"]
    dist.barrier(group=group)


def main():
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=100)
    dist.init_process_group("cohort", timeout=limit)
    everyone, some = list(range(SIZE)), [r for r in range(SIZE) if r != 1]
    groups = {"cohort": None, "gloo": dist.new_group(backend="gloo", timeout=limit)}
    sub = {name: dist.new_group(some, backend=name, timeout=limit) for name in groups}
    done = both = 0
    for call in REDUCING + MOVING:
        for dtype in TYPES:
            for layout in LAYOUTS:
                cases = ((everyone, groups), (some, sub)) if layout == "plain" else ((everyone, groups),)
                for op in [(name,) for name in ops_for(dtype)] if call in REDUCING else [()]:
                    for members, of in cases:
                        done += 1
                        if RANK in members:
                            both += check(call, members, of, dtype, layout, done % 2 == 0, *op)
    objects(None, everyone)
    if RANK in some:
        objects(sub["cohort"], some)
    if RANK == 0:
        print(f"{done} calls, {both} of them compared with Gloo's")
    assert both > 500
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
