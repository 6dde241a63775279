#!/usr/bin/env python3
"""The example train_digits trains under DDP and on a mesh, and goes on from its checkpoints under the other one.

usage: train_digits_test.py FOLDER-OF-PROGRAMS
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = sys.argv[1]


def train(launch, *options):
    command = [os.path.join(PROGRAMS, "dlaunch"), *launch, "--", os.path.join(PROGRAMS, "train_digits"), *options]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
                          check=False)


class TrainDigits(unittest.TestCase):
    def epochs(self, done):
        """[(epoch, accuracy)] that rank 0 printed."""
        self.assertEqual(done.returncode, 0, done.stdout)
        found = re.findall(r"^\[0\] epoch +(\d+)/\d+ +loss \S+ +test accuracy (\S+)", done.stdout, re.MULTILINE)
        return [(int(epoch), float(accuracy)) for epoch, accuracy in found]

    def test_the_demo_learns(self):
        done = train(("--simulate-nodes", "2", "--simulate-gpus", "4", "--gpus-per-rank", "2"))
        epochs = self.epochs(done)
        self.assertIn("train_digits: ddp, 1438 training and 359 test images, 4 ranks on 2 nodes, 2 devices a rank",
                      done.stdout)
        self.assertEqual([epoch for epoch, _ in epochs], list(range(1, 13)))
        self.assertGreater(epochs[-1][1], 0.96)

    def test_a_mesh_learns_and_either_goes_on_from_the_other(self):
        with tempfile.TemporaryDirectory(prefix="cohort-train-digits-") as folder:
            checkpoints = ("--checkpoints", folder)
            first = self.epochs(train(("--nproc-per-node", "4"), "--mesh", "replicate=2,shard=2", "--epochs", "3",
                                      *checkpoints))
            self.assertEqual([epoch for epoch, _ in first], [1, 2, 3])
            self.assertEqual(sorted(os.listdir(folder)), ["epoch-1", "epoch-2", "epoch-3"])
            plain = self.epochs(train(("--nproc-per-node", "2"), "--epochs", "5", *checkpoints))
            self.assertEqual([epoch for epoch, _ in plain], [4, 5])
            self.assertGreaterEqual(plain[0][1], first[-1][1] - 0.1)  # begun again, it would be at 0.5
            self.assertGreater(plain[-1][1], 0.9)
            sharded = self.epochs(train(("--nproc-per-node", "2"), "--mesh", "shard=2", "--epochs", "6", *checkpoints))
            self.assertEqual([epoch for epoch, _ in sharded], [6])
            self.assertGreater(sharded[-1][1], 0.9)
            over = train(("--nproc-per-node", "2"), "--epochs", "6", *checkpoints)
            self.assertEqual(self.epochs(over), [])

    def test_a_mesh_of_other_ranks_is_refused(self):
        done = train(("--nproc-per-node", "2"), "--mesh", "shard=3")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("train_digits: ", done.stdout)
        self.assertNotIn("epoch ", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
