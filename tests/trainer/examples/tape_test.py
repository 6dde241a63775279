#!/usr/bin/env python3
"""Each rank of train_digits is recorded and then run again alone: it computes the same, bit for bit.

A replay compares a hash of what the rank gives to each call with that of the recorded run, so gradients and losses that
differ in a bit are said.

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


def program(name):
    return os.path.join(PROGRAMS, name)


def run(*command, folder):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200, check=False,
                          cwd=folder)


class Tape(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cohort-tape-")
        self.addCleanup(self.folder.cleanup)

    def record(self, ranks, command):
        done = run(program("dlaunch"), "--no-prefix", "-n", str(ranks), "--tape", "tapes", "--", *command,
                   folder=self.folder.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def replay(self, rank, command):
        return run(program("dlaunch"), "replay", "tapes", "--rank", str(rank), "--", *command, folder=self.folder.name)

    def check_all(self, ranks, command):
        recorded = self.record(ranks, command)
        losses = [line for line in recorded.stdout.splitlines() if "loss" in line]
        self.assertTrue(losses, recorded.stdout)
        for rank in range(ranks):
            alone = self.replay(rank, command)
            self.assertEqual(alone.returncode, 0, "rank %d: %s%s" % (rank, alone.stdout, alone.stderr))
            self.assertNotIn(DIFFERS, alone.stderr, "rank %d" % rank)
            if rank == 0:
                self.assertEqual([self.untimed(line) for line in alone.stdout.splitlines() if "loss" in line],
                                 [self.untimed(line) for line in losses])

    @staticmethod
    def untimed(line):
        """Without the figures of speed behind the losses."""
        return re.sub(r"[\d.,]+ *(s|ms|images/s|tokens/s)\b", "", line)

    def test_each_rank_of_train_digits(self):
        self.check_all(4, [program("train_digits"), "--epochs", "2"])

    def test_a_changed_program_is_named_with_both_calls(self):
        self.record(2, [program("train_digits"), "--epochs", "1"])
        alone = self.replay(1, [program("train_digits"), "--epochs", "2"])
        self.assertNotEqual(alone.returncode, 0)
        self.assertRegex(alone.stdout + alone.stderr, r"replay: rank 1 calls \w+\(.*\) at \S+:\d+.*its tape has")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
