"""Shared by the tests of MPI programs under dlaunch: the libraries that are installed, and ranks that speak PMI-1
themselves. The first argument of the program is dlaunch.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
import unittest

DLAUNCH = os.path.abspath(sys.argv[1])
LIMIT_S = 100
MPICHS = [os.environ.get("COHORT_TEST_MPI", ""), "libmpich.so.12", "libmpi.so.12"]
OPEN_MPIS = [os.environ.get("COHORT_TEST_OPENMPI", ""), "libmpi.so.40"]


def find_library(names):
    for name in filter(None, names):
        try:
            ctypes.CDLL(name)
            return name
        except OSError:
            continue
    return None


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, **options)


def skip_without_pmix():
    probe = run([DLAUNCH, "-n", "1", "--mpi", "pmix", "true"])
    if "was built without PMIx" in probe.stderr or "no libpmix.so.2" in probe.stderr:
        raise unittest.SkipTest(probe.stderr)


def open_mpi_memory():
    """The memory that ranks of Open MPI share, and the folders for it."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("vader_", "sm_segment", "dlaunch-mpi-"))}


def mapped_memory():
    """The lines of all processes' maps that are in shared memory."""
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps") as maps:
                lines += [line for line in maps if "/dev/shm/" in line]
        except OSError:
            pass
    return "".join(lines)


def left_open_mpi_memory(before):
    """The names that are new in that memory for 20 s and that no process maps: jobs of other tests come and go."""
    deadline = time.monotonic() + 20
    while True:
        left, mapped = open_mpi_memory() - before, mapped_memory()
        left = {name for name in left if f"/dev/shm/{name}" not in mapped}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


class RanksOfALibrary:
    """Ranks that run PROGRAM over a library of MPI: `names` of it, `how` it is served, and `what` it is. `PROGRAM` is
    Python with ctypes, whose first argument is the library: no compiler and no headers are needed."""

    @classmethod
    def setUpClass(cls):
        cls.library = find_library(cls.names)
        if cls.library is None:
            raise unittest.SkipTest(f"no library of {cls.what} is installed ({', '.join(filter(None, cls.names))})")
        if cls.how == "pmix":
            skip_without_pmix()
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = os.path.join(cls.folder.name, "program.py")
        with open(cls.program, "w") as file:
            file.write(cls.PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def command(self, options, *arguments):
        how = [] if "--mpi" in options else ["--mpi", self.how]  # the program does not show that it uses MPI
        return [DLAUNCH, *how, *options, sys.executable, self.program, self.library, *arguments]

    def run_job(self, options, *arguments):
        return run(self.command(options, *arguments))


# The beginning of a program of ranks that speak PMI-1.
PMI1_CLIENT = r"""
import os, sys
fd = int(os.environ["PMI_FD"])
def ask(lines):
    os.write(fd, lines)
    answers = b""
    while answers.count(b"\n") < lines.count(b"\n"):
        part = os.read(fd, 1 << 16)
        if not part: break
        answers += part
    return answers
"""


def run_pmi1_client(program, *options, **environment):
    command = [DLAUNCH, "--mpi", "pmi1", *options, sys.executable, "-c", PMI1_CLIENT + program]
    return run(command, env=dict(os.environ, **environment))
