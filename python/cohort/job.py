"""This process' place in its job: one runtime a process."""

import atexit
import sys
import threading

from cohort import _comm
from cohort.communicator import Communicator

_lock = threading.Lock()
_runtime = None


def runtime(**options):
    """Joins the job at the first call, and returns the Runtime. Options of the first call: timeout (seconds),
    progress_thread (operations go on while the program computes)."""
    global _runtime
    with _lock:
        if _runtime is None:
            _runtime = _comm.Runtime(**options)
            atexit.register(_finalize_at_exit)
        return _runtime


def init(**options):
    """Joins the job (under dlaunch; else a world of one) and returns a communicator of all its ranks. Each call gives
    another one; all ranks make equally many."""
    return Communicator(runtime(**options))


def finalize():
    """Ends in order, as the end of the program does. Later calls of communicators fail. Raises a failure that no call
    has reported yet."""
    if _runtime is not None:
        _runtime.finalize()


def _finalize_at_exit():
    try:
        _runtime.finalize()
    except _comm.Error as error:
        print(f"cohort: {error}", file=sys.stderr)
