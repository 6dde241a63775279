"""schedule as people run it: what it draws, proves, times, reads and refuses.

  command_test.py <schedule>
"""

import os
import subprocess
import sys
import tempfile
import time
import unittest

SCHEDULE = sys.argv[1]
NAMES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv")


def run(*arguments, text=None):
    return subprocess.run([SCHEDULE, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)


class Schedule(unittest.TestCase):
    def test_list_names_all(self):
        listed = run("list")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        for name in NAMES:
            self.assertIn("\n" + name, listed.stdout)

    def test_show_draws_and_proves(self):
        for name in NAMES:
            shown = run("show", name, "--ranks", "3", "--micro-batches", "6")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertEqual(sum(line.startswith("rank ") for line in shown.stdout.splitlines()), 3)
            self.assertIn(f"{name}, 3 ranks", shown.stdout)
            self.assertIn(": right; ", shown.stdout)
        actions = run("show", "1f1b", "--ranks", "2", "--micro-batches", "1", "--rank", "1").stdout.splitlines()
        self.assertEqual(actions[:-1],
                         ["1RECV_F0", "1UNSHARD", "1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD", "1RESHARD"])

    def test_check_proves_every_schedule(self):
        begin = time.monotonic()
        checked = run("check")  # 1 to 16 ranks, 1 to 64 micro-batches
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertEqual(checked.stdout.splitlines(), [f"{name}: 1024 proofs" for name in NAMES])
        self.assertLess(time.monotonic() - begin, 100)  # 10 s are promised
        some = run("check", "--ranks", "1-6", "--micro-batches", "1-16")
        self.assertEqual(some.stdout.splitlines(), [f"{name}: 96 proofs" for name in NAMES])

    def test_simulate_prints_the_formulas(self):
        timed = run("simulate", "1f1b", "--ranks", "4", "--micro-batches", "8")
        self.assertEqual(timed.returncode, 0, timed.stderr)
        self.assertIn("33 units; idle 3/11 (27.3 %), formula 3/11 (27.3 %)", timed.stdout)
        interleaved = run("simulate", "interleaved", "--ranks", "4", "--stages", "8", "--micro-batches", "8")
        self.assertIn("idle 3/19 (15.8 %), formula 3/19", interleaved.stdout)
        self.assertIn("formula -", run("simulate", "interleaved", "--ranks", "4", "--micro-batches", "7").stdout)

    def test_a_trace_of_the_passes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "predicted.pftrace")
            done = run("simulate", "1f1b", "--trace", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("33 units", done.stdout)
            self.assertGreater(os.path.getsize(path), 1000)
            done = run("simulate", "1f1b", "--trace", folder + "/no/x")
            self.assertEqual(done.returncode, 1)
            self.assertIn("--trace: ", done.stderr)

    def test_own_text_is_completed_and_proved(self):
        text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
        parsed = run("parse", "-", text=text)
        self.assertEqual(parsed.returncode, 0, parsed.stderr)
        self.assertIn("0SEND_F0", parsed.stdout)
        self.assertEqual(run("parse", "-", text=parsed.stdout).stdout, parsed.stdout)
        self.assertIn(": right", run("check", "--file", "-", text=parsed.stdout).stdout)

    def test_broken_text_is_refused_by_rank_and_action(self):
        parsed = run("parse", "-", text="0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n").stdout
        for broken, why in ((parsed.replace(",1B1", ""), "rank 1, 1B1: is missing"),
                            (parsed.replace("0F1,", "0F1,0F1,"), "rank 0, action 3, 0F1: comes again as action 4"),
                            (parsed.replace("1SEND_B1", "1SEND_Q1"), "rank 1, cell "),
                            ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "rank 0 stands still at 0B0")):
            done = run("check", "--file", "-", text=broken)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(why, done.stdout + done.stderr)

    def test_what_cannot_be_is_refused(self):
        for command, why in ((["show", "zigzag"], "there are gpipe, 1f1b, interleaved, zb_h1, zbv"),
                             (["check", "zigzag"], "there are gpipe"),
                             (["show", "1f1b", "--ranks", "4", "--stages", "8"], "needs 4 stages, not 8"),
                             (["check", "--ranks", "0-3"], "--ranks needs a number or a range"),
                             (["check", "--micro-batches", "8-"], "--micro-batches needs a number or a range"),
                             (["show"], "needs the name of a schedule"),
                             (["show", "1f1b", "--rank", "4"], "--rank must be less"),
                             (["parse", "/no/such/file"], "No such file"),
                             (["show", "1f1b", "--ranks", "-1"], "--ranks")):
            done = run(*command)
            self.assertNotEqual(done.returncode, 0, command)
            self.assertIn(why, done.stdout + done.stderr, command)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
