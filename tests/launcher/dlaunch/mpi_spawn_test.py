"""MPI programs that publish names of services, and that start processes while they run, under dlaunch.

  mpi_spawn_test.py <dlaunch>

As in mpi_test.py the program is Python with ctypes over the library that is installed; the cases of one that is absent
are skipped.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from mpi_ranks import (LIMIT_S, MPICHS, OPEN_MPIS, RanksOfALibrary, left_open_mpi_memory, open_mpi_memory,
                       run_pmi1_client)

PROGRAM = r"""
import ctypes, os, signal, sys, time
mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
is_open = hasattr(mpi, "ompi_mpi_init")
Comm = ctypes.c_void_p if is_open else ctypes.c_int
def handle(mpich, open_mpi):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, open_mpi))) if is_open else ctypes.c_int(mpich)
WORLD, SELF = handle(0x44000000, "ompi_mpi_comm_world"), handle(0x44000001, "ompi_mpi_comm_self")
NO_INFO, NO_COMM = handle(0x1c000000, "ompi_mpi_info_null"), handle(0x04000000, "ompi_mpi_comm_null")
RETURN = handle(0x54000001, "ompi_mpi_errors_return")
INT, SUM = handle(0x4c000405, "ompi_mpi_int"), handle(0x58000003, "ompi_mpi_op_sum")
what = sys.argv[2]
mpi.MPI_Init(None, None)
for comm in (WORLD, SELF): mpi.MPI_Comm_set_errhandler(comm, RETURN)
rank, size = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))

def sum_over(comm, value, root):
    total = ctypes.c_int(-1)
    mpi.MPI_Reduce(ctypes.byref(ctypes.c_int(value)), ctypes.byref(total), 1, INT, SUM, root, comm)
    return total.value

def spawn(comm, count, arguments, program=sys.executable):
    inter = Comm()
    argv = (ctypes.c_char_p * (len(arguments) + 1))(*[a.encode() for a in arguments], None)
    codes = (ctypes.c_int * max(count, 1))()
    failed = mpi.MPI_Comm_spawn(program.encode(), argv, count, NO_INFO, 0, comm, ctypes.byref(inter), codes)
    if not failed: mpi.MPI_Comm_set_errhandler(inter, RETURN)
    return failed, inter

def child(*arguments):
    return [__file__, sys.argv[1], *arguments]

parent = Comm()
mpi.MPI_Comm_get_parent(ctypes.byref(parent))
has_parent = parent.value != NO_COMM.value
if what == "child":
    # MPI_Reduce over an intercommunicator: the root's group says MPI_ROOT (-3 in MPICH, -4 in Open MPI).
    assert has_parent
    print("child", rank.value, "of", size.value, flush=True)
    if sys.argv[3] == "abort" and rank.value == 1: mpi.MPI_Abort(WORLD, 9)
    if sys.argv[3] == "kill" and rank.value == 1: os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "hang": time.sleep(1000)
    sum_over(parent, rank.value + 1, 0)
    if sys.argv[3] == "nest" and rank.value == 0:
        failed, inter = spawn(SELF, 1, child("child", "reduce"))
        print("grandchild's sum", sum_over(inter, 0, -4 if is_open else -3), flush=True)
        mpi.MPI_Comm_disconnect(ctypes.byref(inter))
    mpi.MPI_Comm_disconnect(ctypes.byref(parent))
    if sys.argv[3] == "outlive":
        time.sleep(2)
        print("child ends last", flush=True)
elif what == "spawn":
    comm = WORLD if len(sys.argv) > 4 else SELF
    if comm is WORLD or rank.value == 0:
        failed, inter = spawn(comm, 2, child("child", sys.argv[3]))
        print("spawned" if not failed else "refused", flush=True)
        if not failed:
            root = (-4 if is_open else -3) if rank.value == 0 else (-2 if is_open else -1)
            total = sum_over(inter, 0, root)
            if rank.value == 0: print("sum of children", total, flush=True)
            mpi.MPI_Comm_disconnect(ctypes.byref(inter))
elif what == "absent":
    failed, inter = spawn(SELF, 1, [], "/nowhere/program")
    print("refused" if failed else "spawned", flush=True)
elif what == "no mpi":
    spawn(SELF, 1, [], "/bin/true")
elif what == "enormous":
    failed, inter = spawn(SELF, 100000, [], "/bin/true")
    print("refused" if failed else "spawned", flush=True)
elif what == "names":
    port = ctypes.create_string_buffer(1024)
    name = b"service of " + os.environ["RANK"].encode() if is_open else b"service" + os.environ["RANK"].encode()
    print("absent", mpi.MPI_Lookup_name(b"nobody's", NO_INFO, port) != 0, flush=True)
    published = mpi.MPI_Publish_name(name, NO_INFO, b"port%d" % rank.value)
    again = mpi.MPI_Publish_name(name, NO_INFO, b"another")
    mpi.MPI_Barrier(WORLD)
    other = name[:-1] + b"%d" % ((rank.value + 1) % size.value)
    found = mpi.MPI_Lookup_name(other, NO_INFO, port)
    print("rank", rank.value, published, again != 0, found, port.value.decode(), flush=True)
    mpi.MPI_Barrier(WORLD)
    print("taken back", mpi.MPI_Unpublish_name(name, NO_INFO, b"port%d" % rank.value), flush=True)
    mpi.MPI_Barrier(WORLD)
    print("gone", mpi.MPI_Lookup_name(other, NO_INFO, port) != 0, flush=True)
mpi.MPI_Finalize()
"""


def cohort_processes(mark):
    """Processes whose command line has `mark`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Programs(RanksOfALibrary):
    PROGRAM = PROGRAM

    def skip_unless_it_spawns(self):
        job = self.run_job(["-n", "1"], "enormous")
        if "refused" in job.stdout and "MPI_Comm_spawn" not in job.stderr:
            self.skipTest(f"{self.library} refuses MPI_Comm_spawn without asking its launcher")

    def setUp(self):
        self.memory_before = open_mpi_memory()

    def check_nothing_left(self):
        deadline = time.monotonic() + 20
        while cohort_processes(self.program) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(cohort_processes(self.program), [])
        self.assertEqual(left_open_mpi_memory(self.memory_before), set())

    def test_names_are_found_by_all_ranks_until_they_are_taken_back(self):
        for options in (["-n", "2"], ["--simulate-nodes", "2", "--nproc-per-node", "1"]):
            job = self.run_job(options, "names")
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            for rank in range(2):
                self.assertIn(f"rank {rank} 0 True 0 port{1 - rank}", job.stdout)
            for line in ("absent True", "taken back 0", "gone True"):
                self.assertEqual(job.stdout.count(line), 2, job.stdout)

    def test_spawned_processes_are_a_world_that_reaches_the_asking_rank(self):
        self.skip_unless_it_spawns()
        for options, arguments in ((["-n", "1"], ["reduce"]), (["-n", "2"], ["reduce"]),
                                   (["-n", "2"], ["reduce", "all"]), (["-n", "1"], ["nest"]),
                                   (["--simulate-nodes", "2", "--nproc-per-node", "1"], ["reduce"])):
            job = self.run_job(options, "spawn", *arguments)
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            self.assertIn("[0] sum of children 3" if options != ["-n", "1"] else "sum of children 3", job.stdout)
            for line in ("child 0 of 2", "child 1 of 2"):
                self.assertIn(line, job.stdout)
            if "nest" in arguments:
                self.assertIn("grandchild's sum 1", job.stdout)

    def test_spawned_processes_that_outlive_the_ranks_are_waited_for(self):
        self.skip_unless_it_spawns()
        job = self.run_job(["-n", "1"], "spawn", "outlive")
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertEqual(job.stdout.count("child ends last"), 2, job.stdout)

    def test_a_spawned_process_that_fails_is_named_and_ends_the_job(self):
        self.skip_unless_it_spawns()
        for what, status, words in (("kill", None, "was killed by SIGKILL"), ("abort", 9, "has called MPI_Abort with 9")):
            job = self.run_job(["-n", "2"], "spawn", what)
            self.assertNotEqual(job.returncode, 0, job.stderr)
            if status is not None:
                self.assertEqual(job.returncode, status, job.stderr)
            self.assertRegex(job.stderr, r"process 1 of 2 that rank 0 has spawned \(.*, pid \d+\) " + words)
            self.check_nothing_left()

    def test_a_program_that_is_not_there_is_refused(self):
        self.skip_unless_it_spawns()
        job = self.run_job(["-n", "1"], "absent")
        self.assertIn("refused", job.stdout, job.stderr)
        self.assertIn("MPI_Comm_spawn of rank 0 starts nothing: there is no program /nowhere/program", job.stderr)

    def test_too_many_processes_are_refused(self):
        self.skip_unless_it_spawns()
        job = self.run_job(["-n", "1"], "enormous")
        self.assertIn("refused", job.stdout, job.stderr)
        self.assertIn("100000 spawned processes are more than the 1024 that one node runs", job.stderr)

    def test_a_spawned_process_that_ends_without_mpi_is_named(self):
        self.skip_unless_it_spawns()
        job = self.run_job(["-n", "1"], "no mpi")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertIn("has ended without MPI_Init, for which MPI_Comm_spawn waits", job.stderr)

    def test_nothing_stays_of_spawned_processes(self):
        self.skip_unless_it_spawns()
        for whom in ("dlaunch", "agent", "rank", "told"):
            process = subprocess.Popen(self.command(["-n", "1"], "spawn", "hang"), stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
            try:
                for _ in range(2):
                    while not process.stdout.readline().endswith("of 2\n"):
                        self.assertIsNone(process.poll())
                ranks = [pid for pid in cohort_processes(self.program) if pid != process.pid]
                self.assertEqual(len(ranks), 3)
                with open(f"/proc/{min(ranks)}/status") as status:
                    agent = int(re.search(r"PPid:\s+(\d+)", status.read()).group(1))
                self.assertNotEqual(agent, process.pid)
                if whom == "told":
                    process.terminate()
                else:
                    os.kill({"dlaunch": process.pid, "agent": agent, "rank": min(ranks)}[whom], signal.SIGKILL)
            finally:
                process.communicate(timeout=LIMIT_S)
            self.check_nothing_left()


CLIENT = r"""
def answer():
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(fd, 1)
        if not part: break
        text += part
    return text.decode().strip()
def spawn(*lines):
    os.write(fd, ("mcmd=spawn\n" + "".join(line + "\n" for line in lines) + "endcmd\n").encode())
    return answer()
ask(b"cmd=init pmi_version=1 pmi_subversion=1\n")
"""
# It ends by the sentence in the variable END.
CHILD = r"""#!/bin/sh
exec %s -c '
import os, signal, sys, time
fd = int(os.environ["PMI_FD"])
def ask(line):
    os.write(fd, line)
    return os.read(fd, 4096).decode().strip()
def await_rank():
    with open(os.environ["CHILD"] + ".pid") as file: rank = file.read()
    while os.path.exists("/proc/" + rank): time.sleep(0.01)
ask(b"cmd=init pmi_version=1 pmi_subversion=1\n")
name = ask(b"cmd=get_my_kvsname\n").split("=")[-1]
print("child", os.environ["PMI_RANK"], "of", os.environ["PMI_SIZE"], "spawned", os.environ["PMI_SPAWNED"],
      ask(b"cmd=get kvsname=%%s key=parent\n" %% name.encode()).split("value=")[1], os.getcwd(),
      os.environ.get("PMIX_MCA_mine"), flush=True)
exec(os.environ.get("END", "ask(b\"cmd=finalize\\n\")"))
'
"""


class Clients(unittest.TestCase):
    """Ranks that speak PMI-1 themselves: no library of MPI is needed."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.child = os.path.join(self.folder.name, "child.sh")
        with open(self.child, "w") as file:
            file.write(CHILD % sys.executable)
        os.chmod(self.child, 0o700)

    def tearDown(self):
        self.folder.cleanup()

    def run_client(self, program, *options, **environment):
        return run_pmi1_client(CLIENT + program, *options, CHILD=self.child, **environment)

    def test_spawned_processes_find_their_world_and_its_values(self):
        job = self.run_client(r"""
print(spawn("nprocs=2", "execname=" + os.environ["CHILD"], "argcnt=0", "preput_num=1", "preput_key_0=parent",
            "preput_val_0=port", "info_num=1", "info_key_0=wdir", "info_val_0=/"))
ask(b"cmd=finalize\n")
""", "-n", "1", PMIX_MCA_mine="kept")
        self.assertEqual(job.returncode, 0, job.stderr)
        for line in ("cmd=spawn_result rc=0 errcodes=0,0", "child 0 of 2 spawned 1 port / kept",
                     "child 1 of 2 spawned 1 port / kept"):
            self.assertIn(line, job.stdout)

    def test_requests_that_are_none_are_refused_and_the_rank_goes_on(self):
        job = self.run_client(r"""
for lines in ([], ["garbage", "=", "nprocs=x"], ["nprocs=1", "execname=/nowhere"], ["nprocs=2147483647", "execname=sh"],
              ["nprocs=1", "execname=sh", "argcnt=2147483647"], ["nprocs=1", "execname=sh", *["arg1=" + "x" * 10000] * 30]):
    print(spawn(*lines)[:40])
for line in (b"cmd=publish_name service=s port=p", b"cmd=publish_name service=s port=q", b"cmd=lookup_name service=s",
             b"cmd=lookup_name service=nobody", b"cmd=unpublish_name service=s", b"cmd=unpublish_name service=s",
             b"cmd=publish_name service=" + b"x" * 300 + b" port=p"):
    print(ask(line + b"\n"))
print(ask(b"cmd=finalize\n"))
""", "-n", "1")
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertEqual(job.stdout.count("cmd=spawn_result rc=-1"), 6, job.stdout)
        self.assertIn("there is no program /nowhere", job.stderr)
        self.assertIn("2147483647 spawned processes are more than the 1024", job.stderr)
        found = re.findall(r"cmd=(publish|lookup|unpublish)_result(?: port=(\w+))? info=(\w+)", job.stdout)
        self.assertEqual(found, [("publish", "", "ok"), ("publish", "", "the_name_is_published_already"),
                                 ("lookup", "p", "ok"), ("lookup", "", "nobody_has_published_that_name"),
                                 ("unpublish", "", "ok"), ("unpublish", "", "nobody_has_published_that_name"),
                                 ("publish", "", "the_name_is_empty_or_too_long")], job.stdout)
        self.assertIn("cmd=finalize_ack", job.stdout)

    def test_a_flood_of_names_is_bounded(self):
        job = self.run_client(r"""
done = 0
for first in range(0, 5000, 500):
    done += ask(b"".join(b"cmd=publish_name service=n%d port=p\n" % i for i in range(first, first + 500))).count(b"rc=0")
print("done", done)
ask(b"cmd=finalize\n")
""", "-n", "1")
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertIn("done 512", job.stdout)

    def test_a_spawned_process_that_dies_at_once_is_named(self):
        job = self.run_client(r"""
print(spawn("nprocs=1", "execname=sh", "arg1=-c", "arg2=exit 3", "argcnt=2"))
print(ask(b"cmd=barrier_in\n"), flush=True)
import time
time.sleep(60)
""", "-n", "1")
        self.assertEqual(job.returncode, 3, job.stderr)
        self.assertRegex(job.stderr, r"process 0 of 1 that rank 0 has spawned \(sh, pid \d+\) exited with code 3")

    def spawn_and(self, then, end, *options):
        """Rank 0 spawns a process, all go on by the sentences `then`, and the process ends by the sentences `end`."""
        return self.run_client(r"""
import time
if os.environ["RANK"] == "0":
    with open(os.environ["CHILD"] + ".pid", "w") as file: file.write(str(os.getpid()))
    spawn("nprocs=1", "execname=" + os.environ["CHILD"], "argcnt=0", "preput_num=1", "preput_key_0=parent",
          "preput_val_0=port")
""" + then, *(options or ("-n", "1")), END=end)

    def test_a_spawned_process_that_fails_after_its_rank_is_the_exit_status(self):
        for end, status, words in (("await_rank(); sys.exit(5)", 5, "exited with code 5"),
                                   ("await_rank(); os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
                                   ("await_rank(); ask(b'cmd=abort exitcode=6\\n')", 6, "has called MPI_Abort with 6")):
            job = self.spawn_and('if os.environ["RANK"] == "1": time.sleep(60)\nask(b"cmd=finalize\\n")', end, "-n", "2")
            self.assertEqual(job.returncode, status, job.stderr)
            self.assertRegex(job.stderr, r"rank 0 \(.*\) ended well, but process 0 of 1 that rank 0 has spawned "
                             r"\(.*child.sh, pid \d+\) " + words)
            self.assertNotIn("killed by its agent", job.stderr)  # rank 1, which had nothing to do with it

    def test_a_job_is_restarted_for_a_spawned_process_that_fails_after_its_rank(self):
        job = self.spawn_and('ask(b"cmd=finalize\\n"); print("epoch", os.environ["COHORT_EPOCH"])',
                             "await_rank(); sys.exit(5 if os.environ['COHORT_EPOCH'] == '1' else 0)",
                             "-n", "1", "--max-restarts", "3")
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertEqual(sorted(set(re.findall(r"epoch (\d)", job.stdout))), ["1", "2"], job.stdout)

    def test_a_spawned_process_that_leaves_its_rank_in_mpi_is_named(self):
        job = self.spawn_and("time.sleep(60)", "pass")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"process 0 of 1 that rank 0 has spawned \(.*\) has ended without MPI_Finalize")

    def test_a_spawned_process_whose_rank_has_left_it_in_mpi_is_ended(self):
        job = self.spawn_and("", "time.sleep(60)")
        self.assertNotEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"process 0 of 1 .* was ended: it can't go on in MPI without rank 0, which has ended "
                         "without MPI_Finalize")

    def test_a_flood_of_requests_that_fail_is_told_up_to_a_bound(self):
        job = self.run_client(r"""
print(sum("rc=-1" in spawn("nprocs=1", "execname=/nowhere/" + "x" * 8000) for _ in range(500)))
print(ask(b"cmd=finalize\n"))
""", "-n", "1")
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertIn("500", job.stdout)
        self.assertEqual(job.stderr.count("MPI_Comm_spawn of rank 0 starts nothing"), 64)
        self.assertEqual(job.stderr.count("that rank 0 has spawned are left out"), 1)
        self.assertLess(len(job.stderr), 100 << 10)

    def test_lines_of_a_spawned_world_name_its_rank(self):
        job = self.spawn_and('ask(b"cmd=finalize\\n")', "ask(b'cmd=init pmi_version=1 pmi_subversion=1\\n')\n"
                             "ask(b'cmd=finalize\\n')")
        self.assertEqual(job.returncode, 0, job.stderr)
        self.assertRegex(job.stderr, r"among the 1 processes that rank 0 has spawned: rank 0 is in MPI and has started")


class Mpich(Programs, unittest.TestCase):
    names, how, what = MPICHS, "pmi1", "MPICH's binary interface"


class OpenMpi(Programs, unittest.TestCase):
    names, how, what = OPEN_MPIS, "pmix", "Open MPI"


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
