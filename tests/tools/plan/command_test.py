"""plan as people run it: what it refuses, what it explains, and rows that come when they are done.

  command_test.py <plan>
"""

import os
import shlex
import subprocess
import sys
import tempfile
import unittest

PLAN = sys.argv[1]


def run(*arguments):
    return subprocess.run([PLAN, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Plan(unittest.TestCase):
    def test_single_copy_serves_one_host(self):
        why = "all_reduce single_copy reads and writes the memory of other ranks, so it serves groups on one host"
        for command in (["show", "all_reduce", "single_copy", "--nodes", "2"],
                        ["check", "all_reduce", "single_copy", "--nodes", "2"],
                        ["simulate", "all_reduce", "single_copy", "--network", "flat:nodes=4"]):
            done = run(*command)
            self.assertIn(why, done.stdout + done.stderr, command)
            self.assertNotIn(": right", done.stdout, command)
            self.assertEqual(done.returncode, 1, command)
        for command in (["show", "all_reduce", "single_copy", "--nodes", "1"],
                        ["show", "all_reduce", "single_copy", "--ranks", "3"],
                        ["check", "all_reduce", "single_copy"],
                        ["simulate", "all_reduce", "single_copy", "--network", "host:ranks-per-node=4"]):
            done = run(*command)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_check_that_proves_nothing_fails(self):
        for command, why in (
                ("all_reduce single_copy --nodes 2", "serves groups on one host, not on 2"),
                ("all_gather recursive_doubling --ranks 3", "needs a power of two of ranks"),
                ("all_gather recursive_doubling --sizes 5-7", "needs a power of two of ranks"),
                ("all_reduce leader:flat+ring", "needs to know which ranks share a host"),
                ("all_reduce leader:flat+ring --sizes 1-4", "needs to know which ranks share a host"),
                ("all_reduce shared:flat+ring --nodes 3,2", "needs equally many ranks on every host")):
            done = run("check", *command.split())
            self.assertEqual(done.returncode, 1, command)
            self.assertIn("nothing was proved: ", done.stderr, command)
            self.assertIn(why, done.stderr, command)
            self.assertIn("give a group that it serves", done.stderr, command)
        # An operation that does not apply is no failure if others are proved, or other sizes.
        for command in ("all_reduce --nodes 2", "all_gather --ranks 3", "all_gather recursive_doubling --sizes 3-4",
                        "all_reduce leader:flat+ring --nodes 2"):
            done = run("check", *command.split())
            self.assertEqual(done.returncode, 0, command + done.stderr)
            self.assertRegex(done.stdout, ": right|: [1-9][0-9]* proofs?", command)

    def test_values_that_mean_nothing_are_refused(self):
        for command in ("list --nodes nan", "list --nodes -1", "list --nodes ''", "show all_reduce ring --root -1",
                        "check --sizes ''", "check all_reduce --nodes ''",
                        "simulate all_reduce ring --network flat:nodes=4 --root -1"):
            done = run(*shlex.split(command))
            self.assertNotEqual(done.returncode, 0, command)
            self.assertIn(command.split()[-2], done.stderr, command)
            self.assertEqual(done.stdout, "", command)
        self.assertIn(":", run("list", "--nodes", "2").stdout)

    def test_all_algorithms_of_several_hosts(self):
        done = run("simulate", "all_reduce", "--network", "flat:nodes=4", "--bytes", "64")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {line.split()[0]: line for line in done.stdout.splitlines()[3:]}
        self.assertIn("on one host", rows["single_copy"])
        self.assertRegex(rows["ring"], r"ring +[0-9.]+ ")

    def test_rows_come_when_they_are_done(self):
        # The first takes some seconds, the third three times as long.
        command = [PLAN, "simulate", "all_reduce", "--network", "fat-tree:nodes=1024,ranks-per-node=1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(5)]
            self.assertIsNone(process.poll(), "it was through already: the network is too small for this test")
            process.kill()
        self.assertRegex(lines[3], r"^algorithm ")
        self.assertRegex(lines[4], r"^[a-z_]+ +[0-9.]+ ")

    def test_signs_are_explained_where_they_are_drawn(self):
        for command in (["--help"], ["show", "--help"]):
            text = run(*command).stdout
            for sign in ("in[3]>1", "in[3]>*", "out[2..5]<3", "->1, -<0", "open, meet", "in[0]@1"):
                self.assertIn(sign, text, command)
        for command in ("list", "check", "explain", "simulate"):
            text = run(command, "--help").stdout
            self.assertNotIn("in[3]>1", text, command)
            self.assertIn("plan " + command, text)  # an example

    def test_steps_of_one_rank_are_proved_too(self):
        done = run("show", "all_reduce", "ring", "--ranks", "4", "--rank", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 of 4", done.stdout)
        self.assertRegex(done.stdout.splitlines()[-1], "^all_reduce ring, 4 ranks: right; rounds ")
        self.assertIn("all_reduce ring, 1 rank: right", run("check", "all_reduce", "ring", "--ranks", "1").stdout)
        self.assertIn("ring: 1 proof\n", run("check", "all_reduce", "ring", "--sizes", "2-2").stdout)

    def test_ranks_and_nodes_must_agree(self):
        for command in ("show", "check"):
            done = run(command, "all_reduce", "ring", "--ranks", "4", "--nodes", "3,2")
            self.assertEqual(done.returncode, 1, command)
            self.assertIn("--ranks 4 and --nodes 3,2, which are 5 ranks, contradict each other", done.stderr)
            self.assertEqual(done.stdout, "")
            for agreeing in (["--nodes", "3,2"], ["--ranks", "5", "--nodes", "3,2"], ["--ranks", "5", "--nodes", "2"]):
                done = run(command, "all_reduce", "ring", *agreeing)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("all_reduce ring, 5 ranks: right", done.stdout)

    def test_help_of_simulate_has_every_column_and_figure(self):
        text = run("simulate", "--help").stdout
        head = text[text.index("The columns"):]
        for column in ("time us", "messages", "wire bytes", "core bytes", "uplinks", "ranks timed", "took s"):
            self.assertIn("\n  %s  " % column, head)
        names = head[head.index("\n  flat"):].split("\n\n", 1)[0].split("\n")[1:]
        presets = [line.split()[0] for line in names]
        rows = {line.split()[0]: line.split()[1:] for line in head.splitlines() if line.startswith("  ")}
        for column, preset in enumerate(presets):
            done = run("simulate", "barrier", "dissemination", "--network", preset)
            self.assertEqual(done.returncode, 0, done.stderr)
            name, figures = done.stdout.splitlines()[1].split(":")
            self.assertEqual(name, preset)
            for figure, value in (pair.split("=") for pair in figures.split(",")):
                self.assertEqual(rows[figure][column], value, preset + " " + figure)
        self.assertIn("; choose %s or %s" % (", ".join(presets[:-1]), presets[-1]),
                      run("simulate", "barrier", "--network", "none").stderr)
        for line in head.splitlines():
            self.assertLessEqual(len(line), 120, line)

    def test_a_trace_of_the_prediction(self):
        simulate = ["simulate", "all_reduce", "ring", "--network", "host:ranks-per-node=4"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "predicted.pftrace")
            for size in (0, 1):  # alone, then behind the first
                before = os.path.getsize(path) if size else 0
                done = run(*simulate, "--trace", path)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual("the prediction begins at the beginning" in done.stderr, size == 1, done.stderr)
                self.assertGreater(os.path.getsize(path), before)
            self.assertEqual(run(*simulate).stdout.splitlines()[3].split()[:2], done.stdout.splitlines()[3].split()[:2])
            text = os.path.join(folder, "text")
            with open(text, "w", encoding="utf-8") as file:
                file.write("no trace\n")
            for arguments, status, why in (([*simulate, "--trace", text], 1, "is no trace"),
                                           ([*simulate, "--trace", folder + "/no/x"], 1, "No such file"),
                                           ([*simulate, "--trace", ""], 2, "the name of a file"),
                                           (["simulate", "all_reduce", "--network", "flat", "--trace", path], 2,
                                            "algorithm")):
                done = run(*arguments)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(why, done.stderr)

    def test_numbers(self):
        for value in ("nan", "inf", "0", "x", "1e999", "9" * 309):
            done = run("explain", "all_reduce", "--ranks-per-cpu", value)
            self.assertEqual(done.returncode, 2, value)
            self.assertIn("--ranks-per-cpu: needs a number from 0.001 to 1e+06", done.stderr)
            self.assertLess(len(done.stderr), 300)
        for option in ("--ranks", "--hosts", "--bytes"):
            done = run("explain", "all_reduce", option, "9" * 309)
            self.assertEqual(done.returncode, 2, option)
            self.assertLess(len(done.stderr), 300, done.stderr)
        self.assertEqual(run("explain", "all_reduce", "--ranks-per-cpu", "2.5", "--bytes", "64K").returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
