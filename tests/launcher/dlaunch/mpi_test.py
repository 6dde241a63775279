"""MPI programs that nobody changed, under dlaunch: they find each other, and fail with a report.

  mpi_test.py <dlaunch>

The program is Python with ctypes over a library of MPICH's binary interface (MPICH, Intel MPI), so that no compiler and
no headers are needed. Where there is none the test is skipped.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest

DLAUNCH = os.path.abspath(sys.argv[1])
LIMIT_S = 100
LIBRARIES = [os.environ.get("COHORT_TEST_MPI", ""), "libmpich.so.12", "libmpi.so.12"]

# Handles of MPICH's binary interface: MPI_COMM_WORLD, MPI_INT, MPI_SUM.
PROGRAM = r"""
import ctypes, os, signal, sys, time
mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
WORLD, INT, SUM = 0x44000000, 0x4c000405, 0x58000003
what = sys.argv[2] if len(sys.argv) > 2 else ""
if what == "never" and os.environ["RANK"] == "1":
    sys.exit(0)
mpi.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(rank.value + 1)), ctypes.byref(total), 1, INT, SUM, WORLD)
print("rank", rank.value, "of", size.value, "sum", total.value, "as", os.environ["RANK"], flush=True)
if rank.value == 1:
    if what == "abort":
        mpi.MPI_Abort(WORLD, 7)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("a rank of MPI")
    if what == "leave":
        os._exit(0)
mpi.MPI_Barrier(WORLD) if what else None
mpi.MPI_Finalize()
"""


def find_library():
    for name in filter(None, LIBRARIES):
        try:
            ctypes.CDLL(name)
            return name
        except OSError:
            continue
    return None


class MpiPrograms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = os.path.join(cls.folder.name, "program.py")
        with open(cls.program, "w") as file:
            file.write(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_job(self, options, *arguments):
        how = [] if "--mpi" in options else ["--mpi", "pmi1"]  # the program does not show that it uses MPI
        command = [DLAUNCH, *how, *options, sys.executable, self.program, LIBRARY, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)

    def check_world(self, options, size):
        job = self.run_job(options)
        self.assertEqual(job.returncode, 0, job.stderr)
        lines = sorted(re.sub(r"^\[\d+\] ", "", line) for line in job.stdout.splitlines())
        total = size * (size + 1) // 2
        self.assertEqual(lines, sorted(f"rank {r} of {size} sum {total} as {r}" for r in range(size)), job.stdout)

    def test_ranks_of_one_node_find_each_other(self):
        self.check_world(["-n", "3"], 3)

    def test_ranks_of_several_nodes_find_each_other(self):
        self.check_world(["--simulate-nodes", "2", "--nproc-per-node", "2"], 4)
        self.check_world(["--simulate-nodes", "3", "-n", "4"], 4)

    def test_each_rank_is_alone_without_mpi(self):
        job = self.run_job(["-n", "2", "--mpi", "none"])
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertEqual(job.stdout.count("rank 0 of 1"), 2, job.stdout)

    def test_a_script_of_mpi4py_is_found_to_use_mpi(self):
        script = os.path.join(self.folder.name, "mpi4py_program.py")
        with open(script, "w") as file:
            file.write("# as from mpi4py import MPI would\n" + PROGRAM)
        command = [DLAUNCH, "-n", "2", sys.executable, script, LIBRARY]
        job = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertIn("rank 1 of 2 sum 3", job.stdout)

    def test_an_abort_is_the_exit_status_and_is_told(self):
        job = self.run_job(["-n", "3"], "abort")
        self.assertEqual(job.returncode, 7, job.stderr)
        self.assertRegex(job.stderr, r"rank 1 \(.*\) exited with code 7.*MPI_Abort")
        self.assertIn("in MPI, whose calls Cohort does not see", job.stderr)

    def test_the_killed_rank_is_named_first(self):
        job = self.run_job(["--simulate-nodes", "2", "--nproc-per-node", "2"], "kill")
        self.assertEqual(job.returncode, 137, job.stderr)
        self.assertRegex(job.stderr, r"dlaunch: rank 1 \(.*\) killed by SIGKILL")

    def test_an_exception_is_named_first(self):
        job = self.run_job(["-n", "3"], "raise")
        self.assertEqual(job.returncode, 1, job.stderr)
        self.assertRegex(job.stderr, r"dlaunch: rank 1 \(.*\).*ValueError: a rank of MPI")

    def test_a_rank_that_never_comes_is_named(self):
        job = self.run_job(["--simulate-nodes", "2", "-n", "3"], "never")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"waits in an MPI barrier for rank 1, which has ended without MPI_Finalize")

    def test_other_forms_are_refused_with_the_remedy(self):
        for word, remedy in {"pmix": "Open MPI's mpirun", "yes": "give auto, pmi1 or none"}.items():
            job = self.run_job(["--mpi", word])
            self.assertEqual(job.returncode, 2, job.stderr)
            self.assertIn(remedy, job.stderr)


if __name__ == "__main__":
    LIBRARY = find_library()
    if LIBRARY is None:
        print("skipped: no library of MPICH's binary interface is installed (libmpich.so.12, libmpi.so.12)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
