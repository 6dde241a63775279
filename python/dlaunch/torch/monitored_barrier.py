"""A barrier whose error names the ranks that are absent.

Every rank tells rank 0 that it has come, and rank 0 tells all that have come who has not:

    1 ──► 0      2 ──► 0      3 ──► 0     a byte
    0 ──► 1      0 ──► 2      0 ──► 3     a byte for each rank, 1 where it is absent

The errors have the words of Gloo's, which programs look for."""

import threading
import time

import torch

from dlaunch import _comm
from dlaunch.torch.tensors import memory

# Messages outlive a barrier that fails: one that is late would end the group.
_EVER = 3e8
# How much longer than its timeout a rank waits for the verdict: rank 0 gives it at the end of its own.
_GRACE = 0.5


class MonitoredBarrier:
    """The monitored barriers of one group, over messages that are nobody else's: one that fails leaves the group whole.
    A rank that has missed one is one behind the others from then on."""

    def __init__(self, communicator):
        self._messages = _comm.Messages(communicator)
        self._rank, self._size = communicator.rank, communicator.size
        self._calls = 0
        self._lock = threading.Lock()

    def __call__(self, seconds, wait_all_ranks):
        """Blocks for at most `seconds`, and half a second more where rank 0 does not answer. Raises DeadlineExceededError
        where a rank is absent. Of several that are, the error of rank 0 puts them all first where `wait_all_ranks`."""
        with self._lock:
            tag = self._calls
            self._calls += 1
        if seconds <= 0:
            raise _comm.DeadlineExceededError(
                f"[Rank {self._rank}]: Rank {self._rank} timed out in monitoredBarrier after 0 ms: give it a timeout")
        if self._rank == 0:
            self._watch(tag, seconds, wait_all_ranks)
        else:
            self._report(tag, seconds)

    def close(self):
        """Ends barriers under way, in other threads too."""
        self._messages = None

    def _open(self):
        messages = self._messages
        if messages is None:
            raise _comm.FailedPreconditionError("this process group has been destroyed")
        return messages

    def _watch(self, tag, seconds, wait_all_ranks):
        until = time.monotonic() + seconds
        signs = [self._open().receive(memory(torch.zeros(1, dtype=torch.uint8)), rank, tag, _EVER)
                 for rank in range(1, self._size)]
        absent = [rank for rank, sign in enumerate(signs, 1) if not _arrived(sign, until)]
        verdict = torch.zeros(self._size, dtype=torch.uint8)
        verdict[absent] = 1
        present = [rank for rank in range(1, self._size) if rank not in absent]
        for call in [self._open().send(memory(verdict), rank, tag, _EVER) for rank in present]:
            _arrived(call, time.monotonic() + _GRACE)
        if not absent:
            return
        named = absent if wait_all_ranks else absent[:1]
        others = "" if len(named) == len(absent) else f"; so did {_named(absent[1:]).lower()}"
        raise _comm.DeadlineExceededError(
            f"[Rank 0]: {_named(named)} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms{others}")

    def _report(self, tag, seconds):
        until = time.monotonic() + seconds + _GRACE
        verdict = torch.zeros(self._size, dtype=torch.uint8)
        answer = self._open().receive(memory(verdict), 0, tag, _EVER)
        sign = torch.zeros(1, dtype=torch.uint8)
        _arrived(self._open().send(memory(sign), 0, tag, _EVER), until)
        if not _arrived(answer, until):
            why = f"it has not answered in {seconds * 1000:.0f} ms"
        elif verdict.any():
            why = f"{_named(verdict.nonzero().flatten().tolist()).lower()} did not come"
        else:
            return
        raise _comm.DeadlineExceededError(
            f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received errors while "
            f"waiting for send/recv from rank 0: {why}")


def _arrived(call, until):
    """Whether it was complete at that time. Raises its error."""
    try:
        call.wait(max(until - time.monotonic(), 0))
    except _comm.DeadlineExceededError:
        if call.done() and call.exception() is not None:
            raise
        return call.done()
    return True


def _named(ranks):
    return ("Rank " if len(ranks) == 1 else "Ranks ") + ", ".join(str(rank) for rank in ranks)
