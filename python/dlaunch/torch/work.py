"""Operations under way, as torch.distributed sees them."""

import atexit
import datetime
import os
import re
import threading
import time

import torch
import torch.distributed as dist

from dlaunch import _comm

BaseWork = getattr(dist, "Work", None) or dist._Work

# A work that C++ waits for (DistributedDataParallel's) is a C++ object with a Python part, and PyTorch before 2.8 may
# drop that part as soon as the call has started: C++ then waits for ever. There works are kept until they have ended.
_VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
_DROPS_WORKS = _VERSION < (2, 8)
_kept = set()
_LOOKED_AT = 64  # above this number, those that have ended without a wait are let go


def _keep(work):
    if len(_kept) >= _LOOKED_AT:
        for other in list(_kept):
            if all(call.done() for call in other._calls):
                _kept.discard(other)
    _kept.add(work)


def ended(call, seconds):
    """Waits for the call, at most `seconds`. Returns whether it has ended; raises its error, never that of the wait: the
    call may end just after it."""
    if not call.done():
        try:
            call.wait(max(seconds, 0))
        except _comm.DeadlineExceededError:
            if not call.done():
                return False
    error = call.exception()
    if error is not None:
        raise error
    return True


class Work(BaseWork):
    """Started calls, what is to be done when they are complete, and the tensors that they fill.

    wait() drives the calls in the thread that waits. Futures are completed by threads of the process, which wait
    for all works whose future somebody has asked for."""

    _expires = None  # only receives have no deadline of their own: a message is awaited for several of them
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
            elif not ended(call, until - time.monotonic()):
                return False
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
                    if self._expires is None or time.monotonic() < self._expires:
                        return False
                    raise _comm.DeadlineExceededError("no message has come for this receive within the group's timeout")
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
        except Exception:  # noqa: BLE001: exception() and wait() give it
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
                future = self._ending.then(self._outcome)
                _completion.add(self)
                self._future = future
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
    """The work that torch gets for calls. Calls with async_op=False are complete and have returned None."""
    if calls and calls[-1] is None:
        if staging is not None:
            staging.finish()
        return _done
    return Work(calls, result, staging)


_PATIENCE = 0.02  # seconds; as long as this the callbacks of a future may take before others go on beside them


class _Completion:
    """The threads that complete futures, in the order in which their works end.

    The leader waits for works and runs the callbacks of their futures. A follower watches it: callbacks may wait for
    other futures, so one that has not returned after _PATIENCE loses the lead to the follower, which gets a follower of
    its own. Without callbacks that take so long there are these two threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)  # for the leader
        self._watch = threading.Condition(self._lock)  # for followers
        self._works = []  # in the order in which futures were asked for; the leader alone takes works out
        self._leader = None
        self._callbacks_began = None
        self._followers = self._sleepers = 0
        self._threads = set()
        self._stopping = False

    def add(self, work):
        """RuntimeError where there is no thread and none can be made."""
        with self._lock:
            if not self._threads:
                self._start()
            self._works.append(work)
            self._news.notify()
            if self._sleepers > 0:
                self._watch.notify()

    def _start(self):
        thread = threading.Thread(target=self._run, name="cohort futures", daemon=True)
        thread.start()
        self._threads.add(thread)

    def stop(self):
        with self._lock:
            self._stopping = True
            self._news.notify_all()
            self._watch.notify_all()
            threads = list(self._threads)
        until = time.monotonic() + 10  # a program's callback may block for ever
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))

    def _run(self):
        me = threading.current_thread()
        while self._follow(me):
            while self._leader is me:
                work = self._next()
                if work is None:
                    return
                self._begin_callbacks()
                work._complete_future()
                del work  # its tensors, too
                with self._lock:
                    if self._leader is me:
                        self._callbacks_began = None
            with self._lock:
                if self._followers > 0:
                    self._threads.discard(me)
                    return

    def _follow(self, me):
        """Returns True when this thread leads, False when the process ends."""
        with self._lock:
            self._followers += 1
            while not self._stopping and not self._may_lead():
                if self._callbacks_began is not None and self._works:
                    self._watch.wait(max(self._callbacks_began + _PATIENCE - time.monotonic(), 0))
                elif self._works or self._callbacks_began is not None:
                    self._watch.wait(_PATIENCE)
                else:
                    self._sleepers += 1
                    self._watch.wait()
                    self._sleepers -= 1
            self._followers -= 1
            if self._stopping:
                return False
            self._leader, self._callbacks_began = me, None
            return True

    def _may_lead(self):
        if self._leader is None:
            return True
        return bool(self._works) and self._callbacks_began is not None \
            and time.monotonic() >= self._callbacks_began + _PATIENCE

    def _begin_callbacks(self):
        with self._lock:
            self._callbacks_began = time.monotonic()
            if self._followers == 0:
                try:
                    self._start()
                except RuntimeError:  # no thread to be had: these callbacks are waited for
                    pass
            elif self._sleepers > 0 and self._works:
                self._watch.notify()

    def _next(self):
        """The next work that has ended, or None when the process ends."""
        pause = 0.0
        while True:
            with self._lock:
                while not self._works and not self._stopping:
                    self._news.wait()
                if self._stopping:
                    return None
                works = list(self._works)
            # The oldest is waited for, the others are looked at: a later one may end first.
            for i, work in enumerate(works):
                if self._has_ended(work, pause if i == 0 else 0):
                    first = next((other for other in works[:i] if self._has_ended(other, 0)), work)
                    with self._lock:
                        self._works.remove(first)
                    return first
            pause = min(2 * pause + 0.0005, 0.005)

    @staticmethod
    def _has_ended(work, seconds):
        try:
            return work._try(seconds)
        except Exception:  # noqa: BLE001: the work keeps it for the future
            return True


_completion = _Completion()
atexit.register(lambda: _completion.stop())


def _forget_threads():
    global _completion
    _completion = _Completion()


os.register_at_fork(after_in_child=_forget_threads)  # a child has no threads but its own
