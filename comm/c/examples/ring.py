"""A first program with nothing but ctypes. Programs for numpy and PyTorch use the package dlaunch, which is faster.

    COHORT_C_LIBRARY=DIR/lib/libcohort_c.so dlaunch --nproc-per-node 4 ring.py
"""

import ctypes
import os
import sys

INT32, FLOAT64 = 5, 12
SUM = ctypes.c_void_p(1)
FOREVER = 2**63 - 1


class Place(ctypes.Structure):
    _fields_ = [("value", ctypes.c_double), ("rank", ctypes.c_int64)]


PLACE_BLOCK = 0x40000000 + ctypes.sizeof(Place)
Reduce = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32,
                          ctypes.c_void_p)
library = ctypes.CDLL(os.environ.get("COHORT_C_LIBRARY", "libcohort_c.so.1"))
library.cohort_last_error.restype = ctypes.c_char_p


def call(name, *arguments):
    """Calls a function of cohort.h. Plain numbers are counts, which have 64 bits."""
    values = [ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments]
    if getattr(library, "cohort_" + name)(*values) != 0:
        raise RuntimeError(library.cohort_last_error().decode())


@Reduce
def smaller(out, a, b, count, _type, _context):
    """The smaller value and its rank."""
    least, x, y = ((Place * count).from_address(address) for address in (out, a, b))
    for i in range(count):
        value, rank = min((x[i].value, x[i].rank), (y[i].value, y[i].rank))
        least[i].value, least[i].rank = value, rank


def around_the_ring(world, rank, size):
    passing, arrived, total = ctypes.c_int32(rank), ctypes.c_int32(), rank
    for _ in range(1, size):
        work = ctypes.c_void_p()
        to, source = ctypes.c_int32((rank + 1) % size), ctypes.c_int32((rank - 1) % size)
        call("send", world, ctypes.byref(passing), 1, ctypes.c_int32(INT32), to, None, ctypes.byref(work))
        try:
            call("receive", world, ctypes.byref(arrived), 1, ctypes.c_int32(INT32), source, None, None)
        finally:  # the send uses `passing` until it is done
            call("work_wait", work, FOREVER)
            call("work_free", work)
        passing.value = arrived.value
        total += arrived.value
    return total


def main():
    job, world, op = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    rank, size = ctypes.c_int32(), ctypes.c_int32()
    call("init", None, ctypes.byref(job))
    call("world", job, None, ctypes.byref(world))
    call("comm_rank", world, ctypes.byref(rank))
    call("comm_size", world, ctypes.byref(size))
    around = around_the_ring(world, rank.value, size.value)
    total = ctypes.c_double(rank.value)
    call("all_reduce", world, ctypes.byref(total), ctypes.byref(total), 1, ctypes.c_int32(FLOAT64), SUM, None, None)
    mine = Place(-1.5 if rank.value == size.value // 2 else rank.value, rank.value)
    least = Place()
    call("op_create", smaller, None, b"least place", ctypes.c_int32(1), ctypes.byref(op))
    call("all_reduce", world, ctypes.byref(mine), ctypes.byref(least), 1, ctypes.c_int32(PLACE_BLOCK), op, None, None)
    call("op_free", op)
    if rank.value == 0:
        print(f"{size.value} ranks, around the ring {around}, all-reduce {total.value:g}, "
              f"least {least.value:g} on rank {least.rank}")
    call("comm_free", world)
    call("finalize", job)


if __name__ == "__main__":
    sys.exit(main())
