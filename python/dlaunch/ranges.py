"""Names what a rank does, for traces (dlaunch --trace) and `dlaunch why`."""

from dlaunch import _comm


def step(number):
    """A step of the program begins. `dlaunch why` counts steps by these numbers, and does not search for them. The step
    ends with the mark of the next number. Costs less than a microsecond; does nothing before init()."""
    _comm.mark_step(number)


class range:  # shadows the builtin in this module alone
    """A named range of a trace:

        with dlaunch.range("load the batch"):
            ...

    Ranges lie in each other as their blocks do; each thread has its own. While no trace is taken they cost less than a
    microsecond. torch.profiler.record_function makes such ranges too where dlaunch.torch is imported."""

    __slots__ = ("_name", "_open")

    def __init__(self, name):
        self._name = name
        self._open = None

    def __enter__(self):
        self._open = _comm.open_range(self._name)
        return self

    def __exit__(self, *raised):
        self._open = None
