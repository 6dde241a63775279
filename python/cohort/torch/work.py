"""Operations under way, as torch.distributed sees them."""

import atexit
import datetime
import re
import threading
import time

import torch
import torch.distributed as dist

from cohort import _comm

BaseWork = getattr(dist, "Work", None) or dist._Work

# A work that C++ waits for (DistributedDataParallel's) is a C++ object with a Python part, and PyTorch before 2.8 may
# drop that part as soon as the call has started: C++ then waits for ever. There works are kept until they have ended.
_VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
_DROPS_WORKS = _VERSION < (2, 8)
_kept = set()
_LOOKED_AT = 64  # with so many, those that have ended without a wait are let go


def _keep(work):
    if len(_kept) >= _LOOKED_AT:
        for other in list(_kept):
            if all(call.done() for call in other._calls):
                _kept.discard(other)
    _kept.add(work)


class Work(BaseWork):
    """Started calls, what is to be done when they are complete, and the tensors that they fill.

    wait() drives the calls in the thread that waits. Futures are completed by threads of the process, which wait
    for all works whose future somebody has asked for."""

    _expires = None  # only a receive from anyone has no deadline of its own
    _error = None
    _source = None
    _ended = False
    _future = _ending = None

    def __init__(self, calls, result, staging=None, limit=None):
        super().__init__()
        if limit is not None:
            self._expires = time.monotonic() + limit
        self._calls = calls
        self._result = result
        self._staging = staging
        self._lock = threading.Lock()
        if _DROPS_WORKS:
            _keep(self)

    def _advance(self, seconds):
        """Waits for the calls, as long as `seconds` or without end where that is None. Returns whether they are
        complete; raises their error."""
        until = self._expires if seconds is None else time.monotonic() + seconds
        for call in self._calls:
            if until is None:
                call.wait()
            elif not call.done():
                try:
                    call.wait(max(until - time.monotonic(), 0))
                except _comm.DeadlineExceededError:
                    if not call.done():
                        return False
                    if call.exception() is not None:  # none: it ended just after the wait
                        raise
            elif call.exception() is not None:
                raise call.exception()
        return True

    def _end(self, error):
        with self._lock:
            if not self._ended:
                if error is None and self._staging is not None:
                    try:
                        self._staging.finish()
                    except Exception as caught:  # the program may have resized a tensor meanwhile
                        error = caught
                self._error = error
                self._staging = None
                self._source = self._calls[0].source if self._calls else None
                self._calls = ()
                self._ended = True
                _kept.discard(self)

    def _try(self, seconds):
        """As _advance, and ends the work."""
        if not self._ended:
            try:
                if not self._advance(seconds):
                    if seconds is None:
                        raise _comm.DeadlineExceededError("no message has come from anyone within the group's timeout")
                    return False
            except _comm.Error as error:
                self._end(error)
            else:
                self._end(None)
        if self._error is not None:
            raise self._error
        return True

    def wait(self, timeout=datetime.timedelta(0)):
        seconds = timeout.total_seconds()  # none or less: as long as the operation may take
        if not self._try(seconds if seconds > 0 else None):
            raise _comm.DeadlineExceededError(f"the operation was not complete after {seconds} s; it goes on")
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        try:
            return self._try(0)
        except _comm.Error:
            return True

    def is_success(self):
        return self.is_completed() and self._error is None

    def _source_rank(self):
        """The sender of a received message, in the group."""
        return -1 if self._source is None else self._source

    source_rank = _source_rank

    def exception(self):
        return self._error

    def result(self):
        self.wait()
        return self._result

    def get_future(self):
        """A future whose value is the list of tensors.

        An error must be one in C++ too: DistributedDataParallel reads the first tensor of the value and would crash
        where the value is an exception. set_exception() makes such a value; a callback that raises makes an error."""
        with self._lock:
            if self._future is None:
                self._ending = torch.futures.Future()
                self._future = self._ending.then(self._outcome)
                _completion.add(self)
            return self._future

    def _outcome(self, _):
        if self._error is not None:
            raise self._error.with_traceback(None)  # C++ puts the frames into the text
        return self._result

    def _complete_future(self):
        ending, self._ending = self._ending, None
        ending.set_result(None)


class DoneWork(BaseWork):
    """Calls that were complete when they returned. torch waits for them and asks for nothing else."""

    def wait(self, timeout=None):
        return True

    synchronize = is_completed = is_success = wait

    def exception(self):
        return None


_done = DoneWork()


def started(calls, result, staging=None):
    """What torch gets for calls, of which those with async_op=False are complete and have returned None."""
    if calls and calls[-1] is None:
        if staging is not None:
            staging.finish()
        return _done
    return Work(calls, result, staging)


class _Completion:
    """The threads that complete futures.

    One of them at a time, the leader, waits for works. As soon as one has ended, it stops leading and runs the callbacks
    of that work's future, which may block: meanwhile another thread leads, and a new one is started where none is idle.
    A callback may so wait for other futures (leader and followers: Schmidt et al., Pattern-Oriented Software
    Architecture 2)."""

    def __init__(self):
        self._condition = threading.Condition()
        self._works = []  # in the order in which futures were asked for; the leader alone takes works out
        self._leading = False
        self._idle = 0
        self._threads = []
        self._stopping = False

    def add(self, work):
        with self._condition:
            self._works.append(work)
            if not self._leading:
                self._call_leader()

    def _call_leader(self):
        """With the condition held."""
        if self._idle > 0:
            self._condition.notify()
        elif not self._stopping:
            if not self._threads:
                atexit.register(self._stop)
            thread = threading.Thread(target=self._run, name="cohort futures", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _stop(self):
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        until = time.monotonic() + 10  # a program's callback may block for ever
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    def _run(self):
        while True:
            with self._condition:
                self._idle += 1
                while not self._stopping and (self._leading or not self._works):
                    self._condition.wait()
                self._idle -= 1
                if self._stopping:
                    return
                self._leading = True
            work = self._lead()
            with self._condition:
                self._leading = False
                if work is None:
                    return
                if self._works:
                    self._call_leader()
            work._complete_future()

    def _lead(self):
        """The next work that has ended, or None when the process ends."""
        pause = 0.0
        while not self._stopping:
            # The oldest is waited for, the others are looked at: a later one may end first.
            for i, work in enumerate(list(self._works)):
                if self._has_ended(work, pause if i == 0 else 0):
                    with self._condition:
                        self._works.remove(work)
                    return work
            pause = min(2 * pause + 0.0005, 0.005)
        return None

    @staticmethod
    def _has_ended(work, seconds):
        try:
            return work._try(seconds)
        except Exception:  # noqa: BLE001: the work keeps it for the future
            return True


_completion = _Completion()
