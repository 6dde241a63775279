"""Cohort: collective communication among the ranks that dlaunch starts.

    import dlaunch
    import numpy

    world = dlaunch.init()                     # under dlaunch; else a world of one
    data = numpy.full(1024, world.rank, numpy.float32)
    world.all_reduce(data)                     # in place; blocks, without the GIL
    print(world.rank, data[0])

Buffers are numpy arrays, other objects with the buffer protocol or DLPack (CPU tensors), or tuples (address, count,
dtype). They must be C-contiguous. A bool is moved as a byte and reduced logically; complex numbers can be summed.
"""

from dlaunch._comm import (AbortedError, DeadlineExceededError, Error, FailedPreconditionError, InvalidArgumentError,
                           ResourceExhaustedError, Runtime, UnavailableError, UnimplementedError, Work)
from dlaunch._comm import version as __version__
from dlaunch.communicator import Communicator, DataType, ReduceOp, UserOp
from dlaunch.job import finalize, init, runtime
from dlaunch.ranges import range, step

# Without range: `from dlaunch import *` would hide the builtin one.
__all__ = [
    "AbortedError", "Communicator", "DataType", "DeadlineExceededError", "Error", "FailedPreconditionError",
    "InvalidArgumentError", "ReduceOp", "ResourceExhaustedError", "Runtime", "UnavailableError", "UnimplementedError",
    "UserOp", "Work", "finalize", "init", "runtime", "step", "__version__",
]
