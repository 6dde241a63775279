"""Jobs on kernels that lack what dlaunch asks first, as that of RHEL 8, and where a container's filter refuses it.

  old_kernel_test.py <dlaunch>

A seccomp filter answers the calls with ENOSYS or EPERM in dlaunch and all that it starts. Where the interpreter has the
package dlaunch, a Python program runs too: `tools/dev wheel` gives this test the wheel's.
"""

import ctypes
import errno
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

DLAUNCH = os.path.abspath(sys.argv[1])
LIMIT_S = 60
# Linux 5.3, 5.9, 5.3, 5.1: numbers that all architectures share.
CALLS = {"pidfd_open": 434, "close_range": 436, "clone3": 435, "pidfd_send_signal": 424}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PROGRAM = """
import array, dlaunch
world = dlaunch.init()
numbers = array.array("f", [world.rank] * 1000)
world.all_reduce(numbers)
print("the sum is", numbers[999])
dlaunch.finalize()
"""
LIBC = ctypes.CDLL(None, use_errno=True)


def refuse_calls(numbers, error):
    """From now on this process and its children get `error` for these calls, for good."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    program = struct.pack("HBBI", load, 0, 0, 0)
    for number in numbers:
        program += struct.pack("HBBI", jump_if_equal, 0, 1, number) + struct.pack("HBBI", give, 0, 0, 0x50000 | error)
    program += struct.pack("HBBI", give, 0, 0, 0x7FFF0000)
    kept = ctypes.create_string_buffer(program, len(program))
    filter_of = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(kept)))
    assert LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_of) == 0


def processes_with(mark):
    """The processes of this machine whose environment holds `mark`, which this test's have."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if mark.encode() in environment.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class OldKernel:
    """The cases; a subclass says what the calls answer."""

    calls, error = list(CALLS.values()), None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.mark = f"COHORT_TEST_OLD_KERNEL={os.getpid()}.{self.id()}"

    def start(self, *arguments):
        name, value = self.mark.split("=")
        return subprocess.Popen([DLAUNCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                cwd=self.folder.name, env={**os.environ, name: value},
                                preexec_fn=lambda: refuse_calls(self.calls, self.error))

    def run_job(self, *arguments):
        job = self.start(*arguments)
        self.addCleanup(job.kill)
        output = job.communicate(timeout=LIMIT_S)[0]
        return job.returncode, output

    def assert_nothing_stays(self):
        until = time.monotonic() + LIMIT_S
        while left := processes_with(self.mark):
            self.assertLess(time.monotonic(), until, left)
            time.sleep(0.02)

    def test_the_filter_answers(self):
        script = ("import ctypes, sys; c = ctypes.CDLL(None, use_errno=True); "
                  f"print([(c.syscall(n, 1, 0), ctypes.get_errno()) for n in {self.calls}])")
        got = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S,
                             preexec_fn=lambda: refuse_calls(self.calls, self.error))
        self.assertEqual(got.stdout.strip(), str([(-1, self.error)] * len(self.calls)))

    def test_a_job_runs_and_its_ranks_inherit_nothing(self):
        status, output = self.run_job("--simulate-nodes", "2", "--nproc-per-node", "2", "ls", "-m", "/proc/self/fd")
        self.assertEqual(status, 0, output)
        for rank in range(4):
            self.assertIn(f"[{rank}] 0, 1, 2, 3\n", output)  # the last is the folder that ls reads
        self.assert_nothing_stays()

    def test_a_killed_rank_is_named_and_ends_the_job(self):
        status, output = self.run_job("--simulate-nodes", "2", "--nproc-per-node", "2", "sh", "-c",
                                      '[ $RANK != 3 ] || kill -9 $$; sleep 1000 & wait')
        self.assertEqual(status, 137, output)
        self.assertIn("rank 3 (node1", output)
        self.assertIn("killed by SIGKILL", output)
        self.assert_nothing_stays()

    def killed_in_a_job(self, victims_of):
        job = self.start("--simulate-nodes", "2", "--nproc-per-node", "2", "sh", "-c", "echo ready; sleep 1000 & wait")
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        ready = 0
        for line in job.stdout:
            ready += "ready" in line
            if ready == 4:
                break
        for pid in victims_of(job):
            os.kill(pid, signal.SIGKILL)
        self.assert_nothing_stays()

    def test_nothing_stays_when_dlaunch_is_killed(self):
        self.killed_in_a_job(lambda job: [job.pid])

    def test_nothing_stays_when_dlaunch_and_its_agents_are_killed_at_once(self):
        def victims(job):
            agents = []
            for pid in processes_with(self.mark):
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    if b"\0agent\0" in command.read():
                        agents.append(pid)
            self.assertTrue(agents)
            return [job.pid, *agents]

        self.killed_in_a_job(victims)

    @unittest.skipUnless(importlib.util.find_spec("dlaunch"), "this interpreter has no package dlaunch")
    def test_a_python_program_computes_on_two_nodes(self):
        status, output = self.run_job("--simulate-nodes", "2", "--nproc-per-node", "2", sys.executable, "-c", PROGRAM)
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("the sum is 6.0"), 4, output)
        self.assert_nothing_stays()

    def test_doctor_says_what_is_lost(self):
        _, output = self.run_job("doctor")
        self.assertIn("lacks pidfd_open", output)
        self.assertIn("every 20 ms", output)
        self.assertIn("without close_range" + (" and clone3" if CALLS["clone3"] in self.calls else " ("), output)


class BeforeLinux53(OldKernel, unittest.TestCase):
    error = errno.ENOSYS


class InAContainersFilter(OldKernel, unittest.TestCase):
    # The C library starts no thread where clone3 is refused like this.
    calls, error = [number for name, number in CALLS.items() if name != "clone3"], errno.EPERM


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
