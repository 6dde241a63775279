"""The communicator and the values of its calls. comm/communicator.h documents the operations."""

import array
import enum
import os
import threading

from dlaunch import _comm

# Frames in these folders and files are not the user's: the call site is the innermost frame outside.
internal_places = [os.path.dirname(os.path.abspath(__file__)) + os.sep]


def add_internal(module):
    """Call sites are looked for outside of this module or package too."""
    path = os.path.abspath(module.__file__)
    package = hasattr(module, "__path__")
    internal_places.append(os.path.dirname(path) + os.sep if package else path)
    _comm.configure(internal_places, threading.main_thread().ident)


_comm.configure(internal_places, threading.main_thread().ident)

DataType = enum.IntEnum("DataType", {name.upper(): value for name, value in _comm.data_types.items()},
                        module=__name__)
ReduceOp = enum.IntEnum("ReduceOp", {name.upper(): value for name, value in _comm.reduce_ops.items()},
                        module=__name__)


class UserOp:
    """A reduction of the program: function(out, a, b) computes out = a op b.

    The three are memoryviews of bytes, of equal size; out may be a or b (`numpy.frombuffer(a, numpy.float32)` reads
    them). It must be associative, must not block, and must make no call of a communicator. All members pass the same
    name, which stands for the function in comparisons and messages. An exception fails the operation."""

    def __init__(self, function, name=None, commutative=True):
        self.function = function
        self.name = name or function.__name__
        self.commutative = commutative


class Communicator(_comm.Communicator):
    """An immutable, ordered group of ranks and the collective operations among them.

    Each call blocks, without the GIL, until it is complete; with async_op=True it returns a Work at once. All members
    make the same calls in the same order; one that differs raises FailedPreconditionError on every member, which names
    both calls and both lines. Any thread may call. Options of every call, by name:

      timeout       seconds after which the operation fails on all members (600)
      async_op      return a Work
      algorithm     force an algorithm by its name; all members the same
      determinism   'fast', 'reproducible' or 'order_invariant', of reductions; equal on all members
      tag           a number that must be equal on all members, for messages
      factor        what op 'premulsum' multiplies this rank's input by
      stream        cudaStream_t as a number, for CUDA memory
    """

    def split(self, color, key=0):
        """Ranks with equal color form a group, ordered by (key, rank). With color < 0 a rank gets None. Collective."""
        mine = array.array("q", [color, key])
        everyone = array.array("q", bytes(16 * self.size))
        self.all_gather(mine, everyone)
        members = sorted((everyone[2 * rank + 1], rank) for rank in range(self.size) if everyone[2 * rank] == color)
        return None if color < 0 else self.subgroup([rank for _, rank in members])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
