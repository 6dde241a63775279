"""The store of torch.distributed inside the job: init_method="cohort://".

Its values live in dlaunch's rendezvous. A rank reaches them through its node's agent, so no port is opened and
MASTER_ADDR is not needed. It serves every backend. Under dlaunch it also takes the place of PyTorch's TCPStore where a
program names no store."""

import datetime
import os
import time
import uuid
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from dlaunch import _comm, job

# A variable of the job has at most 48 KiB together with its name. A longer value lies in variables of its own, which
# the value of its key names.
_PART = 40_000
_PARTS = b"\xffcohort parts "
# Ctrl-C ends a wait within this time.
_SLICE = 0.5
# An answer may take as long, in seconds.
_ANSWER = 60.0

_Error = getattr(dist, "DistStoreError", RuntimeError)
_kept = []  # C++ holds stores, but not the Python objects that they call


class Store(dist.Store):
    """torch.distributed.Store on the job's variables. Any thread may call. `get` and `wait` block until the keys are
    there, and raise DistStoreError (PyTorch 1.13: RuntimeError) after the timeout. The other calls return at once, and
    raise dlaunch.Error where the job is ending. All values of a job together may have 64 MiB; those of compare_set have at
    most 48 KiB."""

    def __init__(self, timeout=datetime.timedelta(seconds=300)):
        super().__init__()
        self._runtime = job.runtime(progress_thread=True)
        self.set_timeout(timeout)
        _kept.append(self)

    def clone(self):
        return Store(self.timeout)

    def has_extended_api(self):
        return True

    def set(self, key, value):
        self._exchange("set", key, value)

    def get(self, key):
        until = time.monotonic() + self.timeout.total_seconds()
        while True:
            left = max(0, until - time.monotonic())
            whole = self._whole(self._await(key, datetime.timedelta(seconds=left)))
            if whole is not None:
                return whole
            if time.monotonic() >= until:
                raise _Error(f"the value of {key} lacks parts: the rank that set it has failed")

    def wait(self, keys, timeout=None):
        until = time.monotonic() + (self.timeout if timeout is None else timeout).total_seconds()
        for key in keys:
            self._await(key, datetime.timedelta(seconds=max(0, until - time.monotonic())))

    def check(self, keys):
        return all(self._now(key) is not None for key in keys)

    def add(self, key, amount):
        return self._call("add", key, amount=amount)[2]

    def compare_set(self, key, expected, desired):
        while True:
            whole = self._whole(self._call("compare_set", key, _bytes(desired), _bytes(expected))[1])
            if whole is not None:
                return whole

    def append(self, key, value):
        while True:
            before = self._now(key) or b""
            whole = self._whole(before)
            if whole is not None and self._exchange("compare_set", key, whole + _bytes(value), before):
                return

    def delete_key(self, key):
        found, former, _ = self._call("delete", key)
        self._drop(former)
        return found

    def num_keys(self):
        return self._call("count", "")[2]

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815: the names by which C++ (PrefixStore) looks for them

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values):
            self.set(key, value)

    def _call(self, kind, key, value=b"", expected=b"", amount=0, timeout=_ANSWER):
        return self._runtime.variable(kind, key, value, expected, amount, timeout)

    def _look(self, key, seconds):
        """The value, or None if it does not come within these seconds. Where the machine is too busy for an answer, it
        is asked for again: to look changes nothing."""
        until = time.monotonic() + seconds + _ANSWER
        while True:
            try:
                found = self._call("get", key, timeout=seconds)
                return None if found is None else found[1]
            except _comm.DeadlineExceededError:
                if time.monotonic() >= until:
                    raise

    def _now(self, key):
        return self._look(key, 0)

    def _await(self, key, timeout):
        until = time.monotonic() + timeout.total_seconds()
        while True:
            value = self._look(key, min(_SLICE, max(0, until - time.monotonic())))
            if value is not None:
                return value
            if time.monotonic() >= until:
                raise _Error(f"no rank has set the key {key} within {timeout.total_seconds():.0f} s: a rank is late, "
                             "has not come so far, or makes its process groups in another order")

    def _exchange(self, kind, key, value, expected=b""):
        """Sets the value by this kind of call, in parts if it is long; returns whether it was set. Parts that nobody
        finds any more go."""
        stored, parts = self._split(_bytes(value))
        try:
            for name, part in parts:
                self._call("set", name, part)
            _, former, number = self._call(kind, key, stored, expected)
        except _comm.InvalidArgumentError:  # too long a key, or no room
            self._drop(stored)
            raise
        has_set = kind == "set" or number == 1
        self._drop(stored if not has_set else former if kind == "set" else expected)
        return has_set

    @staticmethod
    def _split(value):
        """The content of a value's variable, and the names and contents of the parts that belong to it."""
        if len(value) <= _PART and not value.startswith(_PARTS):
            return value, []
        stored = _PARTS + f"parts/{uuid.uuid4().hex} {-(-len(value) // _PART)}".encode()
        return stored, [(name, value[i * _PART:(i + 1) * _PART]) for i, name in enumerate(_parts(stored))]

    def _whole(self, value):
        """The value that a variable stands for; None if it has changed since, and its parts have gone."""
        if not value.startswith(_PARTS):
            return value
        parts = [self._now(part) for part in _parts(value)]
        return None if None in parts else b"".join(parts)

    def _drop(self, value):
        for part in _parts(value) if value.startswith(_PARTS) else ():
            self._call("delete", part)


def _parts(value):
    name, count = value[len(_PARTS):].decode().split()
    return [f"{name}/{i}" for i in range(int(count))]


def _bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


def rendezvous(url, timeout=datetime.timedelta(seconds=300), **_):
    """The handler of cohort://. Without dlaunch the job has one rank, whose store is in its own memory."""
    store = Store(timeout) if os.environ.get("COHORT_AGENT") else dist.HashStore()
    runtime = job.runtime(progress_thread=True)
    here = (runtime.rank, runtime.world_size)
    asked = _asked(url, here)
    if asked != here:
        raise _comm.FailedPreconditionError(
            f"init_process_group was told rank {asked[0]} of {asked[1]}, and this process is rank {here[0]} of {here[1]}: "
            "leave rank and world_size out")
    yield store, *here
    raise RuntimeError("cohort:// meets once; a restarted rank is a new process")


def instead_of(env_handler):
    """A handler of env:// that meets in the job where the program named no other place, and by `env_handler` where it
    did."""

    def handler(url, *arguments, **options):
        if _is_job(url):
            yield from rendezvous(url, *arguments, **options)
        elif "RANK" in os.environ or "WORLD_SIZE" in os.environ:
            yield from env_handler(url, *arguments, **options)
        else:
            try:
                yield from env_handler(url, *arguments, **options)
            except ValueError as error:
                raise ValueError(f"{error}. Start the program by dlaunch (dlaunch -n 4 python train.py); alone it is a "
                                 "world of one with init_method='cohort://'") from None

    return handler


def _is_job(url):
    variables = os.environ
    here = job.place()
    if here is None or job.started_by_rank() or variables.get("COHORT_TORCH_STORE") == "tcp":
        return False
    if (variables.get("RANK"), variables.get("WORLD_SIZE")) != tuple(map(str, here)):
        return False
    given = _environment_of_rank()
    named = any(variables.get(name) != given.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    return not named and _asked(url, here) == here


def _asked(url, here):
    query = parse_qs(urlparse(url).query)
    rank, size = (int(query[name][0]) if name in query else -1 for name in ("rank", "world_size"))
    return (here[0] if rank < 0 else rank), (here[1] if size < 0 else size)


def _environment_of_rank():
    """The variables that dlaunch has started this rank with: those of the first of this process' ancestors that are of
    its job. A rank may be a launcher, or a script, which gives its processes others."""
    given, process = {}, "self"
    while True:
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                entries = file.read().split(b"\0")
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                parent = file.read().rpartition(")")[2].split()[1]
        except OSError:
            return given
        variables = dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)
        if variables.get("COHORT_JOB_ID") != os.environ.get("COHORT_JOB_ID"):
            return given
        given, process = variables, parent
