#!/usr/bin/env python3
"""Each rank of train_digits, and of train_gpt over all axes, is recorded and then run again alone: it computes the same,
bit for bit.

A replay compares a hash of what the rank gives to each call with that of the recorded run. So gradients, activations and
losses that differ in a bit are said.

usage: tape_test.py FOLDER-OF-PROGRAMS
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = sys.argv[1]
DIFFERS = "is not what it was in the recorded run"
MOST_BYTES = 1.05  # of a tape, for each that the rank received
GPT = ["--steps", "4", "--log-every", "1", "--batch-size", "12", "--layers", "3", "--width", "32", "--context", "17",
       "--sample", "0"]


def program(name):
    return os.path.join(PROGRAMS, name)


class Tape(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cohort-tape-")
        self.addCleanup(self.folder.cleanup)

    def run_here(self, *command):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200,
                              check=False, cwd=self.folder.name)

    def record(self, ranks, command):
        done = self.run_here(program("dlaunch"), "--no-prefix", "-n", str(ranks), "--tape", "tapes", "--", *command)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def replay(self, rank, command):
        return self.run_here(program("dlaunch"), "replay", "tapes", "--rank", str(rank), "--", *command)

    def check_all(self, ranks, command):
        losses = self.losses(self.record(ranks, command))
        self.assertTrue(losses)
        for rank in range(ranks):
            alone = self.replay(rank, command)
            self.assertEqual(alone.returncode, 0, f"rank {rank}: {alone.stdout}{alone.stderr}")
            self.assertNotIn(DIFFERS, alone.stderr, f"rank {rank}")
            if rank == 0:
                self.assertEqual(self.losses(alone), losses)
        self.check_sizes(ranks)

    def check_sizes(self, ranks):
        listed = self.run_here(program("dlaunch"), "replay", "tapes").stdout
        sizes = re.findall(r"^rank \d+, .* (\d+) bytes for (\d+) that it received", listed, re.MULTILINE)
        self.assertEqual(len(sizes), ranks, listed)
        for size, received in sizes:
            self.assertLessEqual(int(size), MOST_BYTES * int(received), listed)

    @staticmethod
    def losses(done):
        """Losses, norms and accuracies, without the figures of speed behind them."""
        return re.findall(r"(?:loss|gradient norm|test accuracy) [\d.]+", done.stdout)

    def test_each_rank_of_train_digits(self):
        self.check_all(4, [program("train_digits"), "--epochs", "2"])

    def test_each_rank_of_train_gpt_over_all_axes(self):
        self.check_all(8, [program("train_gpt"), *GPT, "--mesh", "pipeline=2,shard=2,tensor=2", "--micro-batches", "2"])

    def test_each_rank_of_replicas_of_train_gpt(self):
        self.check_all(2, [program("train_gpt"), *GPT, "--mesh", "replicate=2"])

    def test_a_changed_program_is_named_with_both_calls(self):
        self.record(2, [program("train_digits"), "--epochs", "1"])
        longer = self.replay(1, [program("train_digits"), "--epochs", "2"])
        self.assertNotEqual(longer.returncode, 0)
        self.assertRegex(longer.stderr, r"replay: rank 1 calls \w+\(.*\) at \S+:\d+ .*its tape has no further call")
        sharded = self.replay(1, [program("train_digits"), "--epochs", "1", "--mesh", "shard=2"])
        self.assertNotEqual(sharded.returncode, 0)
        self.assertRegex(sharded.stderr, r"replay: rank 1 calls \w+\(.*\) at \S+:\d+ .*its tape has as call \d+ "
                         r"\w+\(.*\) at \S+:\d+ ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
