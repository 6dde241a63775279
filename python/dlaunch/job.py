"""This process' place in its job: one runtime at a time."""

import atexit
import os
import sys
import threading

from dlaunch import _comm
from dlaunch.communicator import Communicator

_lock = threading.Lock()
_runtime = None


def is_rank():
    """Whether dlaunch says who this process is. A rank may be another launcher (torchrun, accelerate launch), which says
    it to processes of its own: they inherit the agent's address, but the other launcher names its run."""
    variables = os.environ
    job = variables.get("COHORT_JOB_ID")
    return bool(variables.get("COHORT_AGENT")) and variables.get("TORCHELASTIC_RUN_ID", job) == job


def place():
    """(rank, size) of the rank of dlaunch that this process belongs to, whatever RANK and WORLD_SIZE the program has given
    it; None outside of a job."""
    if not is_rank():
        return None
    return int(os.environ["COHORT_RANK"]), int(os.environ["COHORT_WORLD_SIZE"])


def started_by_rank():
    """Whether a rank's Python program has started this process by multiprocessing."""
    from multiprocessing import parent_process

    return parent_process() is not None


def runtime(**options):
    """Joins the job at the first call, or the first one after finalize(), and returns the Runtime. Options of that call:
    timeout (seconds), progress_thread (operations go on while the program computes)."""
    global _runtime
    with _lock:
        if _runtime is None or _runtime.finalized:
            _runtime = _comm.Runtime(**options)
        return _runtime


def init(**options):
    """Joins the job (under dlaunch; else a world of one) and returns a communicator of all its ranks. Each call gives
    another one; all ranks make equally many."""
    return Communicator(runtime(**options))


def finalize():
    """Ends in order, as the end of the program does. Later calls of its communicators fail; init() may join again, on
    all ranks. Raises a failure that no call has reported yet."""
    global _runtime
    with _lock:
        ended, _runtime = _runtime, None
    if ended is not None:
        ended.finalize()


def _finalize_at_exit():
    try:
        finalize()
    except _comm.Error as error:
        print(f"cohort: {error}", file=sys.stderr)


atexit.register(_finalize_at_exit)
