#!/usr/bin/env python3
"""digits_trainer --save where the weights do not fit: the error names the file and its cause, and what was there stays.

usage: digits_save_test.py DIGITS_TRAINER
"""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

DIGITS_TRAINER = sys.argv[1]


def limit_files():
    # As a shell leaves it: Python itself ignores the signal.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


class Save(unittest.TestCase):
    def test_the_limit_on_files_is_an_error_with_the_name(self):
        with tempfile.TemporaryDirectory(prefix="cohort-digits-save-") as folder:
            weights = os.path.join(folder, "weights.pt")
            with open(weights, "w") as file:
                file.write("old")
            # pylint: disable-next=subprocess-popen-preexec-fn
            done = subprocess.run([DIGITS_TRAINER, "--single", "--epochs", "1", "--save", weights], capture_output=True,
                                  text=True, timeout=100, check=False, preexec_fn=limit_files)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("digits_trainer: saving the weights: cannot write " + weights + ": File too large", done.stderr)
            with open(weights) as file:
                self.assertEqual(file.read(), "old")
            self.assertEqual(os.listdir(folder), ["weights.pt"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
