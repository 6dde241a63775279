"""MPI programs that nobody changed, under dlaunch: they find each other, and fail with a report.

  mpi_test.py <dlaunch>

The program is Python with ctypes over a library of MPICH's binary interface (MPICH, Intel MPI; COHORT_TEST_MPI names
another) or Open MPI's (COHORT_TEST_OPENMPI), so that no compiler and no headers are needed. The cases of one that is
absent are skipped.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from mpi_ranks import (DLAUNCH, LIMIT_S, MPICHS, OPEN_MPIS, PMI1_CLIENT, RanksOfALibrary, find_library,
                       left_open_mpi_memory, open_mpi_memory, run, run_pmi1_client, skip_without_pmix)

# Handles of MPI_COMM_WORLD, MPI_INT, MPI_SUM: numbers in MPICH's binary interface, addresses in Open MPI's.
PROGRAM = r"""
import ctypes, os, signal, sys, time
mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
def handle(mpich, open_mpi):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, open_mpi))) if is_open else mpich
is_open = hasattr(mpi, "ompi_mpi_init")
WORLD = handle(0x44000000, "ompi_mpi_comm_world")
INT, SUM = handle(0x4c000405, "ompi_mpi_int"), handle(0x58000003, "ompi_mpi_op_sum")
what = sys.argv[2] if len(sys.argv) > 2 else ""
if what == "never" and os.environ["RANK"] == "1":
    sys.exit(0)
mpi.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(rank.value + 1)), ctypes.byref(total), 1, INT, SUM, WORLD)
print("rank", rank.value, "of", size.value, "sum", total.value, "as", os.environ["RANK"], flush=True)
if what == "appnum":
    number, found = ctypes.POINTER(ctypes.c_int)(), ctypes.c_int()
    mpi.MPI_Comm_get_attr(WORLD, 4 if is_open else 0x6440000d, ctypes.byref(number), ctypes.byref(found))
    print("rank", rank.value, "has appnum", number[0] if found.value else None, flush=True)
if rank.value == 1:
    if what == "abort":
        mpi.MPI_Abort(WORLD, 7)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("a rank of MPI")
    if what == "leave":
        os._exit(0)
    if what == "hang":
        time.sleep(1000)
if len(sys.argv) > 3:
    place = ctypes.c_int()
    status = (ctypes.c_byte * 256)()
    mpi.MPI_Recv(ctypes.byref(place), 1, INT, 1, 0, WORLD, status)
mpi.MPI_Barrier(WORLD) if what else None
mpi.MPI_Finalize()
"""


MPI4PY_PROGRAM = r"""
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, "of", world.size, "sum", world.allreduce(world.rank + 1), flush=True)
"""


def path_of(library):
    """The file of a library that can be loaded."""
    loaded = ctypes.CDLL(library)
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(".so") or ".so." in line:
                path = line.split()[-1]
                if os.path.basename(path).startswith(os.path.basename(library)) and loaded:
                    return path
    return library


class MpiPrograms(RanksOfALibrary):
    """The cases of each library."""

    PROGRAM = PROGRAM

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

    def test_each_rank_knows_its_program_by_appnum(self):
        program = [sys.executable, self.program, self.library, "appnum"]
        command = [DLAUNCH, "--mpi", self.how, "-n", "1", *program, ":", "-n", "2", *program]
        job = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertEqual(job.returncode, 0, job.stderr)
        for rank, appnum in enumerate([0, 1, 1]):
            self.assertIn(f"rank {rank} has appnum {appnum}", job.stdout)

    def test_each_rank_is_alone_without_mpi(self):
        job = self.run_job(["-n", "2", "--mpi", "none"])
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertEqual(job.stdout.count("rank 0 of 1"), 2, job.stdout)

    def test_a_script_of_mpi4py_is_found_to_use_mpi(self):
        script = os.path.join(self.folder.name, "mpi4py_program.py")
        with open(script, "w") as file:
            file.write("# as from mpi4py import MPI would\n" + PROGRAM)
        command = [DLAUNCH, "-n", "2", sys.executable, script, self.library]
        job = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertIn("rank 1 of 2 sum 3", job.stdout)

    def test_an_abort_is_the_exit_status_and_is_told(self):
        job = self.run_job(["-n", "3"], "abort")
        self.assertEqual(job.returncode, 7, job.stderr)
        self.assertRegex(job.stderr, r"dlaunch: rank 1 \(.*\) exited with code 7")
        self.assertRegex(job.stderr, r"(?i)MPI_Abort")  # in the library's own words
        self.assertIn("in MPI, whose calls Cohort does not see", job.stderr)

    def test_the_killed_rank_is_named_first(self):
        job = self.run_job(["--simulate-nodes", "2", "--nproc-per-node", "2"], "kill")
        self.assertEqual(job.returncode, 137, job.stderr)
        self.assertRegex(job.stderr, r"dlaunch: rank 1 \(.*\) killed by SIGKILL")

    def test_a_hang_is_told_with_its_place(self):
        process = subprocess.Popen([DLAUNCH, "--mpi", self.how, "-n", "3", sys.executable, self.program, self.library,
                                    "hang"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL)
        try:
            for _ in range(3):
                process.stdout.readline()
            name, said = None, []
            while name is None:
                said.append(process.stderr.readline())
                name = re.search(r"job-[0-9a-f]+", said[-1])
            found, deadline = "native stacks", time.monotonic() + LIMIT_S / 2
            while "native stacks" in found and "MPI_Barrier" not in found and time.monotonic() < deadline:
                time.sleep(0.5)  # ranks have said all before they are in their barrier
                found = run([DLAUNCH, "stacks", name.group()]).stdout
        finally:
            process.terminate()
            _, stderr = process.communicate(timeout=LIMIT_S)
        if "native stacks" in found:
            self.assertRegex(found, r"MPI_Barrier")
        self.assertRegex(stderr, r"when they were told to end:\n +rank 1: ")  # elsewhere than the others
        self.assertIn("rank 0 (", stderr)
        self.assertIn("in MPI, whose calls Cohort does not see", stderr)

    def test_an_exception_is_named_first(self):
        job = self.run_job(["-n", "3"], "raise")
        self.assertEqual(job.returncode, 1, job.stderr)
        self.assertRegex(job.stderr, r"dlaunch: rank 1 \(.*\).*ValueError: a rank of MPI")

    def test_a_rank_that_never_comes_is_named(self):
        job = self.run_job(["--simulate-nodes", "2", "-n", "3"], "never")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"rank 1.* has ended without MPI_Finalize")

    def test_a_rank_of_one_node_that_never_comes_is_named(self):
        job = self.run_job(["-n", "3"], "never")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"rank 1(, which)? has ended without MPI_Finalize")

    def test_a_rank_that_leaves_without_finalize_is_named(self):
        for options in (["-n", "2"], ["--simulate-nodes", "2", "--nproc-per-node", "1"]):
            for what in ("leave", "leave a receiver"):
                job = self.run_job(options, *what.split(" ", 1))
                self.assertNotEqual(job.returncode, 0, job.stderr)
                self.assertRegex(job.stderr, r"rank 1.* has ended without MPI_Finalize")

    def test_mpi4py_starts_as_its_users_start_it(self):
        python = subprocess.run([sys.executable, "-c", "import mpi4py"], capture_output=True, text=True)
        if python.returncode != 0:
            self.skipTest("mpi4py is not installed for " + sys.executable)
        script = os.path.join(self.folder.name, "users_program.py")
        with open(script, "w") as file:
            file.write(MPI4PY_PROGRAM)
        environment = dict(os.environ, MPI4PY_LIBMPI=self.library)
        if self.how == "pmi1":  # mpi4py's module of that interface asks for libmpi.so.12 by name
            os.symlink(path_of(self.library), os.path.join(self.folder.name, "libmpi.so.12"))
            environment.update(LD_LIBRARY_PATH=self.folder.name + ":" + os.environ.get("LD_LIBRARY_PATH", ""),
                               MPI4PY_MPIABI="mpich")
            del environment["MPI4PY_LIBMPI"]
        for options, size in [(["-n", "3"], 3), (["--simulate-nodes", "2", "--nproc-per-node", "2"], 4)]:
            job = subprocess.run([DLAUNCH, *options, sys.executable, script], capture_output=True, text=True,
                                 timeout=LIMIT_S, stdin=subprocess.DEVNULL, env=environment)
            if "cannot load MPI library" in job.stderr or "undefined symbol" in job.stderr:
                self.skipTest("mpi4py does not load " + self.library + ": " + job.stderr)
            self.assertEqual(job.returncode, 0, job.stderr)
            for rank in range(size):
                self.assertIn(f"rank {rank} of {size} sum {size * (size + 1) // 2}", job.stdout)


class Strangers(unittest.TestCase):
    """Ranks that are no MPI programs, and programs that start ranks themselves. No library of MPI is needed."""

    def test_garbage_is_served_no_more_and_told(self):
        job = run_pmi1_client(r"""
if os.environ["RANK"] == "1":
    try:
        while True: os.write(fd, os.urandom(4096).replace(b"\n", b" "))
    except OSError:
        print("refused")
else:
    print(ask(b"cmd=init pmi_version=1 pmi_subversion=1\n"), ask(b"cmd=finalize\n"))
""", "-n", "2")
        self.assertIn("[1] refused", job.stdout, job.stderr)
        self.assertIn("rank 1 writes to the descriptor PMI_FD what is no PMI-1", job.stderr)
        self.assertIn("cmd=finalize_ack", job.stdout)

    def test_a_flood_of_second_programs_is_told_once(self):
        job = run_pmi1_client(r"""
init = b"cmd=init pmi_version=1 pmi_subversion=1\n"
print(ask(init))
for _ in range(100): assert ask(init * 100).count(b"rc=-1") == 100
print(ask(b"cmd=finalize\n"))
""", "-n", "2")
        self.assertEqual(job.returncode, 0, job.stderr)
        for rank in range(2):
            self.assertEqual(job.stderr.count(f"rank {rank} is in MPI and has started a second MPI program"), 1)

    def test_a_million_keys_are_refused_at_the_limit(self):
        for options in (["-n", "2"], ["--simulate-nodes", "2", "-n", "2"]):
            job = run_pmi1_client(r"""
import subprocess
ask(b"cmd=init pmi_version=1 pmi_subversion=1\n")
if os.environ["RANK"] == "0":
    name = ask(b"cmd=get_my_kvsname\n").split(b"kvsname=")[1].strip()
    refused = 0
    for first in range(0, 1000000, 500):
        refused += ask(b"".join(b"cmd=put kvsname=%s key=key%d value=v\n" % (name, i)
                                for i in range(first, first + 500))).count(b"rc=-1")
    with open("/proc/%d/status" % os.getppid()) as status:
        held = [line.split()[1] for line in status if line.startswith("VmRSS")]
    print("refused", refused, "agent holds", *held)
print(ask(b"cmd=finalize\n"))
""", *options)
            self.assertEqual(job.returncode, 0, job.stderr)
            refused, held = map(int, re.search(r"refused (\d+) agent holds (\d+)", job.stdout).groups())
            self.assertGreater(refused, 400000, job.stdout)
            self.assertLess(held, 300 << 10, job.stdout)  # kB

    def test_an_absent_pmix_is_told_where_open_mpi_would_need_it(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "libpmix.so.2"), "w"):  # a library that does not load
                pass
            script = os.path.join(folder, "script.py")
            with open(script, "w") as file:
                file.write("# mpi4py\n" + PMI1_CLIENT + """
if len(sys.argv) > 1: print(ask(b"cmd=init pmi_version=1 pmi_subversion=1\\n"), ask(b"cmd=finalize\\n"))
""")

            def run(ranks, *arguments):
                return subprocess.run([DLAUNCH, "-n", ranks, sys.executable, script, *arguments], capture_output=True,
                                      text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                                      env=dict(os.environ, LD_LIBRARY_PATH=folder))
            for ranks, arguments, told in (("2", [], True), ("2", ["uses PMI-1"], False), ("1", [], False)):
                job = run(ranks, *arguments)
                self.assertEqual(job.returncode, 0, job.stderr)
                self.assertEqual("if the program uses Open MPI, each rank is alone" in job.stderr, told, job.stderr)

    def test_another_launcher_is_refused_with_the_remedy(self):
        for name in ("mpiexec.example", "srun"):
            with tempfile.TemporaryDirectory() as folder:
                launcher = os.path.join(folder, name)
                with open(launcher, "w") as file:
                    file.write("#!/bin/sh\necho started\n")
                os.chmod(launcher, 0o755)
                job = run([DLAUNCH, "-n", "2", launcher, "-n", "2", "true"])
                self.assertEqual(job.returncode, 2, job.stderr)
                self.assertIn("which starts ranks itself: each of 2 ranks would start a job of its own", job.stderr)
                for options in (["-n", "1"], ["-n", "2", "--mpi", "none"]):
                    job = run([DLAUNCH, *options, launcher, "-n", "2", "true"])
                    self.assertEqual(job.returncode, 0, job.stderr)


PMIX_CLIENT = r"""
import ctypes, os, time
pmix = ctypes.CDLL("libpmix.so.2")
class Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("text", ctypes.c_char_p), ("rest", ctypes.c_byte * 16)]
class Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", Value)]
answers = []
@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
def done(status, *_): answers.append(status)
assert pmix.PMIx_Init(ctypes.create_string_buffer(260), None, 0) == 0
"""


class PmixClients(unittest.TestCase):
    """Ranks that speak PMIx by its own library."""

    @classmethod
    def setUpClass(cls):
        skip_without_pmix()

    def test_a_flood_of_calls_that_wait_is_refused_at_a_bound(self):
        job = run([DLAUNCH, "--mpi", "pmix", "-n", "1", sys.executable, "-c", PMIX_CLIENT + r"""
names = (ctypes.c_char_p * 2)(b"nobody's", None)
wait = Info(key=b"pmix.wait", value=Value(type=6))
asked = sum(pmix.PMIx_Lookup_nb(names, ctypes.byref(wait), ctypes.c_size_t(1), done, None) == 0 for _ in range(20000))
deadline = time.monotonic() + 60
while len(answers) < asked - 1000 and time.monotonic() < deadline: time.sleep(0.01)
print("asked", asked, "refused", len(answers) - answers.count(0), flush=True)
os._exit(0)
"""])
        asked, refused = map(int, re.search(r"asked (\d+) refused (\d+)", job.stdout).groups())
        self.assertEqual(asked, 20000, job.stderr)
        self.assertGreaterEqual(refused, 19000, job.stdout)


class Mpich(MpiPrograms, unittest.TestCase):
    names, how, what = MPICHS, "pmi1", "MPICH's binary interface"

    def test_a_program_of_either_library_is_told_to_speak_pmi1(self):  # MPICH 5 refuses to choose
        script = os.path.join(self.folder.name, "either.py")
        with open(script, "w") as file:
            file.write("# mpi4py\nimport os\nif 'PMIX_RANK' in os.environ: print(os.environ['MPIR_CVAR_PMI_VERSION'])\n")
        job = subprocess.run([DLAUNCH, "-n", "1", sys.executable, script], capture_output=True, text=True,
                             timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertIn(job.stdout, ("[0] 1\n", ""))  # without PMIx nothing

    def test_other_forms_are_refused_with_the_remedy(self):
        job = self.run_job(["--mpi", "yes"])
        self.assertEqual(job.returncode, 2, job.stderr)
        self.assertIn("give auto, pmi1, pmix or none", job.stderr)


class OpenMpi(MpiPrograms, unittest.TestCase):
    names, how, what = OPEN_MPIS, "pmix", "Open MPI"

    def test_ranks_get_the_values_of_others_without_a_fence(self):
        os.environ["OMPI_MCA_pmix_base_async_modex"] = "1"
        try:
            self.check_world(["--simulate-nodes", "2", "--nproc-per-node", "2"], 4)
        finally:
            del os.environ["OMPI_MCA_pmix_base_async_modex"]

    def test_nothing_of_killed_ranks_stays_in_shared_memory(self):
        before = open_mpi_memory()
        for what, status in (("kill", 137), ("abort", 7)):
            job = self.run_job(["-n", "3"], what)
            self.assertEqual(job.returncode, status, job.stderr)
            self.assertIn("sum 6", job.stdout, job.stderr)  # they were connected
        self.assertEqual(left_open_mpi_memory(before), set())

    def test_a_linked_program_runs_without_pmix_as_one_rank_or_by_choice(self):
        program = self.link(self.library)
        folder = os.path.join(self.folder.name, "no_pmix")
        os.mkdir(folder)
        with open(os.path.join(folder, "libpmix.so.2"), "w"):
            pass

        def run(*options):
            return subprocess.run([DLAUNCH, *options, "--env", "LD_LIBRARY_PATH=", program], capture_output=True,
                                  text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                                  env=dict(os.environ, LD_LIBRARY_PATH=folder))
        for options in (["-n", "1"], ["-n", "2", "--mpi", "none"]):
            job = run(*options)
            self.assertEqual(job.returncode, 0, job.stderr)
        job = run("-n", "2")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertIn("--mpi none", job.stderr)

    def test_nothing_stays_in_the_folder_for_temporary_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for options in (["-n", "2"], ["--simulate-nodes", "2", "--nproc-per-node", "1"]):
                for what, status in (("", 0), ("kill", 137)):
                    command = [DLAUNCH, "--mpi", self.how, *options, sys.executable, self.program, self.library, what]
                    job = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S,
                                         stdin=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=folder))
                    self.assertEqual(job.returncode, status, job.stderr)
                    self.assertEqual(os.listdir(folder), [])

    def link(self, library):
        """A program that is linked with a library of MPI and does not use it."""
        if shutil.which("cc") is None:
            self.skipTest("no compiler is installed (cc)")
        program = os.path.join(self.folder.name, "linked_" + os.path.basename(library))
        subprocess.run(["cc", "-x", "c", "-", "-o", program, "-x", "none", "-Wl,--no-as-needed",
                        path_of(library)],
                       input="int main(void) { return 0; }", text=True, check=True, timeout=LIMIT_S)
        return program

    def test_pmi1_is_refused_with_the_remedy(self):
        job = subprocess.run([DLAUNCH, "-n", "2", "--mpi", "pmi1", self.link(self.library)], capture_output=True,
                             text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertEqual(job.returncode, 2, job.stderr)
        self.assertIn("leave --mpi out, or give --mpi pmix", job.stderr)

    def test_programs_of_two_libraries_are_refused_with_the_remedy(self):
        mpich = find_library(MPICHS)
        if mpich is None:
            self.skipTest("MPICH is not installed")
        programs = ["-n", "1", self.link(mpich), ":", "-n", "1", self.link(self.library)]
        for options, status in (([], 2), (["--mpi", "none"], 0)):
            job = subprocess.run([DLAUNCH, *options, *programs], capture_output=True, text=True, timeout=LIMIT_S,
                                 stdin=subprocess.DEVNULL)
            self.assertEqual(job.returncode, status, job.stderr)
            if status != 0:
                self.assertIn("link both with one library", job.stderr)

    def test_a_library_that_does_not_load_is_told_with_the_remedy(self):
        folder = os.path.join(self.folder.name, "broken")
        os.mkdir(folder)
        with open(os.path.join(folder, "libpmix.so.2"), "w"):
            pass
        job = subprocess.run([DLAUNCH, "-n", "2", "--mpi", "pmix", "true"], capture_output=True, text=True,
                             timeout=LIMIT_S, stdin=subprocess.DEVNULL, env=dict(os.environ, LD_LIBRARY_PATH=folder))
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertIn("libpmix2", job.stderr)


if __name__ == "__main__":
    if find_library(MPICHS) is None and find_library(OPEN_MPIS) is None:
        print("skipped: neither a library of MPICH's binary interface (libmpich.so.12, libmpi.so.12) nor Open MPI's "
              "(libmpi.so.40) is installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
