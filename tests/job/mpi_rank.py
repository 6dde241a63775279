#!/usr/bin/env python3
"""A rank that calls MPI until it is killed: prints "ready" after the first all-reduce. No headers and no compiler.

usage: mpi_rank.py [...]       with the library of `COHORT_TEST_MPI_HOW`: pmi1 (MPICH, Intel MPI) or pmix (Open MPI)
       mpi_rank.py --probe HOW ends with 77, and says why, where that library is absent
       mpi_rank.py --once HOW  prints "rank R of N sum S", with the library for pmi1 or pmix, and ends
"""
import ctypes
import os
import sys

LIBRARIES = {"pmi1": (os.environ.get("COHORT_TEST_MPI", ""), "libmpich.so.12", "libmpi.so.12"),
             "pmix": (os.environ.get("COHORT_TEST_OPENMPI", ""), "libmpi.so.40")}


def load(how):
    for name in filter(None, LIBRARIES[how]):
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def main():
    once = sys.argv[1:2] == ["--once"]
    how = sys.argv[2] if len(sys.argv) > 2 and sys.argv[1] in ("--once", "--probe") else os.environ.get(
        "COHORT_TEST_MPI_HOW", "pmi1")
    mpi = load(how)
    if mpi is None:
        print("skipped: no library of MPI for", how, "is installed:", *filter(None, LIBRARIES[how]))
        sys.exit(77)
    if sys.argv[1:2] == ["--probe"]:
        return

    def handle(number, symbol):
        if how == "pmi1":
            return number
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, symbol)))
    world = handle(0x44000000, "ompi_mpi_comm_world")
    number, total = handle(0x4c000405, "ompi_mpi_int"), handle(0x58000003, "ompi_mpi_op_sum")
    mpi.MPI_Init(None, None)
    one, sum_of_all = ctypes.c_int(1), ctypes.c_int()
    if once:
        rank, size = ctypes.c_int(), ctypes.c_int()
        mpi.MPI_Comm_rank(world, ctypes.byref(rank))
        mpi.MPI_Comm_size(world, ctypes.byref(size))
        mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(sum_of_all), 1, number, total, world)
        print("rank", rank.value, "of", size.value, "sum", sum_of_all.value, flush=True)
        mpi.MPI_Finalize()
        return
    said = False
    while True:
        mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(sum_of_all), 1, number, total, world)
        if not said:
            print("ready", flush=True)
            said = True


if __name__ == "__main__":
    main()
