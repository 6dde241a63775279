"""collperf on device memory as a job, over a library that stands for CUDA and NCCL: calls of several processes go
through host memory there, those of one rank are copies. Refusals.

  device_job_test.py <dlaunch> <collperf> <the fake library>
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DLAUNCH, COLLPERF, FAKE = sys.argv[1:4]
OPERATIONS = {"broadcast", "reduce", "all_reduce", "gather", "scatter", "all_gather", "reduce_scatter", "all_to_all",
              "send_recv"}


def run(ranks, *arguments, nccl=FAKE, cuda=FAKE):
    command = [COLLPERF, *arguments]
    if ranks:
        command = [DLAUNCH, "--nproc-per-node", str(ranks), *command]
    environment = {**os.environ, "COHORT_NCCL_LIBRARY": nccl, "COHORT_CUDA_LIBRARY": cuda}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)


class CollperfDevice(unittest.TestCase):
    def check(self, done, path, algorithm, operations):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("memory cuda", done.stdout)
        self.assertIn("# rank 0: CUDA device 0, ", done.stdout)
        written = json.loads(path.read_text())
        self.assertEqual(written["memory"], "cuda")
        self.assertEqual({result["op"] for result in written["results"]}, operations)
        for result in written["results"]:
            self.assertEqual((result["wrong"], result["algorithm"]), (0, algorithm), result)

    def test_through_host_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            for ranks in (2, 3):
                for flags in ([], ["--in-place", "-r", "1"], ["--batch", "7"]):
                    arguments = ("all", "--memory", "cuda", "-b", "8", "-e", "64K", "-f", "8192", "-n", "3", "-w", "1",
                                 "-c", "1", "--json", path, *flags)
                    # Ranks without NCCL agree on it by themselves.
                    self.check(run(ranks, *arguments, nccl="/nowhere/libnccl.so.2"), path, "staged", OPERATIONS)
                    self.check(run(ranks, *arguments, "--algorithm", "staged"), path, "staged", OPERATIONS)

    def test_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            for flags in ([], ["--in-place"], ["--batch", "600"]):
                done = run(0, "all", "--memory", "cuda", "-e", "64K", "-f", "64", "-n", "3", "--json", path, *flags)
                self.check(done, path, "copy", OPERATIONS - {"send_recv"})
                self.assertIn("# send_recv is left out", done.stdout)

    def test_spoilt_elements_are_counted(self):
        done = run(2, "all_reduce", "--memory", "cuda", "--algorithm", "staged", "-b", "64", "-e", "64", "-n", "3",
                   "--spoil")
        self.assertEqual(done.returncode, 1)
        self.assertIn("4 elements were wrong", done.stdout)

    def test_refusals(self):
        for arguments, says in ((["--window"], "--memory cuda and --window"),
                                (["--rewrite"], "--memory cuda and --rewrite"),
                                (["--messages", "5"], "--memory cuda and --messages"),
                                (["--cost"], "--memory cuda and --cost"),
                                (["--calibrate"], "--memory cuda and --calibrate"),
                                (["--transport", "shm"], "--memory cuda and --transport"),
                                (["--algorithm", "ring"], "--memory cuda and --algorithm ring")):
            done = run(2, "all_reduce", "--memory", "cuda", "-n", "1", *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)
        self.assertIn("--memory cuda and barrier", run(0, "barrier", "--memory", "cuda").stderr)
        self.assertIn("there are host and cuda", run(0, "all_reduce", "--memory", "gpu").stderr)

    def test_without_cuda(self):
        for ranks in (0, 2):
            done = run(ranks, "all_reduce", "--memory", "cuda", "-n", "1", cuda="/nowhere/libcudart.so")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--memory cuda: the CUDA runtime could not be loaded", done.stderr)
            self.assertIn("COHORT_CUDA_LIBRARY", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
