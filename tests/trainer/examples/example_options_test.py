#!/usr/bin/env python3
"""The examples refuse what can't work before they train, and say why.

usage: example_options_test.py FOLDER-OF-PROGRAMS DIGITS_TRAINER
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS, DIGITS_TRAINER = sys.argv[1:3]
SMALL_GPT = ("train_gpt", "--layers", "1", "--width", "8", "--context", "8", "--batch-size", "4", "--steps", "1")


def run(program, *options):
    return subprocess.run([os.path.join(PROGRAMS, program), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=100, check=False)


class Options(unittest.TestCase):
    def refused(self, status, expected, *command):
        done = run(*command)
        self.assertEqual(done.returncode, status, done)
        self.assertIn(expected, done.stdout)
        self.assertNotIn("epoch ", done.stdout)
        self.assertNotIn("step ", done.stdout)

    def test_numbers_that_would_train_nothing_or_nonsense(self):
        self.refused(2, "--steps: Value -5", "train_gpt", "--steps", "-5")
        self.refused(2, "--steps: Value", "train_gpt", "--steps", "99999999999999999999")
        self.refused(2, "--clip: nan is no positive number", "train_gpt", "--clip", "nan")
        self.refused(2, "--clip: -1 is no positive number", "train_gpt", "--clip", "-1")
        self.refused(2, "--lr: inf is no number from 0 on", "train_gpt", "--lr", "inf")
        self.refused(2, "--mode", "train_gpt", "--mode", "zero1", "--mesh", "shard=1")
        self.refused(1, "--single trains without any", DIGITS_TRAINER, "--single", "--mode", "fsdp")
        for port in ("port_fsdp", "port_fairscale"):
            done = run(port, "--epochs", "-1")
            self.assertNotEqual(done.returncode, 0, done)
        done = run("port_fsdp", "--replicate", "0")
        self.assertGreater(done.returncode, 0, done)  # and no signal
        self.assertIn("--replicate", done.stdout)

    def test_ranks_that_were_started_otherwise_are_told_what_differs(self):
        """Each would train a model that no one process has."""
        gpt = " ".join((os.path.join(PROGRAMS, "train_gpt"), *SMALL_GPT[3:]))  # without --layers
        with tempfile.NamedTemporaryFile("w") as other:
            other.write("one text and no other " * 1000)
            other.flush()
            for mesh, option, names in (("pipeline=2", "--layers 4", "layers=4"), ("tensor=2", "--seed 5", "seed=5"),
                                        ("tensor=2", "--data " + other.name, other.name),
                                        ("tensor=2", "--dropout 0.5", "dropout=0.5"),
                                        ("shard=2", "--checkpoints /nowhere", "/nowhere")):
                unlike = "[ $RANK = 0 ] && exec %s --mesh %s; exec %s --mesh %s %s" % (gpt, mesh, gpt, mesh, option)
                done = run("dlaunch", "--nproc-per-node", "2", "sh", "-c", unlike)
                self.assertEqual(done.returncode, 1, done)
                self.assertIn("rank 1 was set up otherwise than rank 0", done.stdout)
                self.assertIn(names, done.stdout)

    def test_options_that_do_not_fit_the_ranks_are_faults_of_usage(self):
        for expected, *options in (("--mesh shard=2 is of 2 ranks, and there is 1", "--mesh", "shard=2"),
                                   ('not "rows=1"', "--mesh", "rows=1"),
                                   ("--schedule wants gpipe", "--mesh", "pipeline=1", "--schedule", "best"),
                                   ("in 3 micro-batches each", "--mesh", "pipeline=1", "--micro-batches", "3"),
                                   ("in 3 parts each", "--accumulate", "3"),
                                   ("give --micro-batches in place", "--mesh", "pipeline=1", "--accumulate", "2"),
                                   ("no layer of the model is named query", "--lora", "2", "--lora-targets", "query"),
                                   ("--dry-run excludes --lora", "--lora", "2", "--dry-run", "2"),
                                   ("--export-adapter requires --lora", "--export-adapter", "here")):
            self.refused(2, expected, *SMALL_GPT, *options)
        self.refused(2, "--width 6 can't be shared evenly by 4 heads", "train_gpt", "--width", "6")
        self.refused(2, "--mesh shard=4 is of 4 ranks, and there are 3", "train_gpt", "--dry-run", "3", "--mesh",
                     "shard=4")
        done = run("dlaunch", "--nproc-per-node", "3", os.path.join(PROGRAMS, "train_gpt"), "--batch-size", "4")
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("can't be shared evenly by 3 ranks", done.stdout)

    def test_training_begins_with_the_weights_of_another_run(self):
        def validation_loss(*command):
            done = run(*command)
            self.assertEqual(done.returncode, 0, done)
            return float(re.search(r"validation loss ([0-9.]+)", done.stdout)[1])

        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            small = (*SMALL_GPT[1:-1], "3", "--sample", "0")
            trained = validation_loss("train_gpt", *small, "--lr", "0.1", "--checkpoints", folder)
            unchanged = (*small, "--base", folder, "--lora", "2", "--lr", "0")  # a new adapter changes nothing
            self.assertEqual(validation_loss("train_gpt", *unchanged), trained)
            self.assertNotEqual(validation_loss("train_gpt", *small, "--lr", "0"), trained)
            for mesh in ("shard=2", "tensor=2", "pipeline=2"):
                pipeline = ("--micro-batches", "2") if mesh == "pipeline=2" else ()
                cut = validation_loss("dlaunch", "--nproc-per-node", "2", os.path.join(PROGRAMS, "train_gpt"), *unchanged,
                                      "--mesh", mesh, *pipeline)
                self.assertAlmostEqual(cut, trained, 4, mesh)
            empty = os.path.join(folder, "empty")
            os.mkdir(empty)
            self.refused(1, "has no checkpoint", "train_gpt", *small, "--base", empty)

    def test_options_of_an_axis_that_is_not_there_are_faults_of_usage(self):
        for option, axis, *values in (("--sequence-parallel", "tensor"), ("--chunks", "tensor", "2"),
                                      ("--schedule", "pipeline", "1f1b"), ("--micro-batches", "pipeline", "4")):
            why = f"{option} acts on the {axis} axis, and %s: give --mesh {axis}=N, or leave {option} out"
            self.refused(2, why % "there is no --mesh", *SMALL_GPT, option, *values)
            self.refused(2, why % "--mesh shard=1 has none", *SMALL_GPT, option, *values, "--mesh", "shard=1")
            self.refused(2, why % "--mesh shard=2 has none", "train_gpt", option, *values, "--mesh", "shard=2",
                         "--dry-run", "2")
            done = run(*SMALL_GPT, option, *values, "--mesh", axis + "=1", "--sample", "0")
            self.assertEqual(done.returncode, 0, done)
        self.refused(2, "give --sample 0", *SMALL_GPT, "--mesh", "pipeline=1", "--sample", "9")

    def test_help_fits_a_screen_and_shows_each_axis(self):
        text = run("train_gpt", "--help").stdout
        self.assertLessEqual(len(text.splitlines()), 50)
        for axis in ("pipeline", "replicate", "shard", "tensor"):
            self.assertRegex(text.split("Examples:")[1], f"train_gpt .*--mesh .*{axis}=2")

    def test_names_that_would_lose_the_training(self):
        self.refused(2, "--export: a name is missing", *SMALL_GPT, "--checkpoints", "here", "--export", "")
        self.refused(2, "--save: a name is missing", DIGITS_TRAINER, "--single", "--save", "")
        self.refused(1, "no folder /nonexistent", DIGITS_TRAINER, "--single", "--save", "/nonexistent/weights.pt")
        with tempfile.NamedTemporaryFile() as file:
            self.refused(1, "making " + file.name, DIGITS_TRAINER, "--checkpoints", file.name)
            self.refused(1, "making " + file.name, *SMALL_GPT, "--checkpoints", file.name)
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            command = (*SMALL_GPT, "--checkpoints", folder, "--export")
            self.refused(1, "no folder /nonexistent", *command, "/nonexistent/weights")
            self.refused(1, "no ordinary file", *command, folder)

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_folders_of_others(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            others = os.path.join(folder, "others")
            os.mkdir(others, 0o555)
            for command in ((DIGITS_TRAINER,), SMALL_GPT):
                self.refused(1, "can't write in " + others, *command, "--checkpoints", others)
            self.refused(1, "can't write in " + others, DIGITS_TRAINER, "--single", "--save", others + "/weights.pt")
            command = (*SMALL_GPT, "--checkpoints", folder, "--export", others + "/weights")
            self.refused(1, "can't write in " + others, *command)

    def test_data_that_is_no_file(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            for command in ((DIGITS_TRAINER, "--single"), SMALL_GPT):
                self.refused(1, pipe + " is no ordinary file", *command, "--data", pipe)
            text = os.path.join(folder, "text")
            with open(text, "w") as file:
                file.write("x" * 20000)
            done = run(*SMALL_GPT, "--data", text, "--sample", "3")  # whose sample can't begin with KING
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("\nxxxx\n", done.stdout)

    def test_a_training_that_is_over_says_so(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            command = (*SMALL_GPT, "--sample", "0", "--checkpoints", folder)
            self.assertEqual(run(*command).returncode, 0)
            done = run(*command, "--resume")
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("already at step 1, --steps is 1\n", done.stdout)

    def test_the_newest_checkpoints_stay(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            digits = (DIGITS_TRAINER, "--epochs", "4", "--batch-size", "600", "--checkpoints", folder)
            self.assertEqual(run(*digits, "--keep", "2").returncode, 0)
            self.assertEqual(sorted(os.listdir(folder)), ["step-00000006", "step-00000008"])
        for keep, first in (((), 3), (("--keep", "0"), 1), (("--keep", "1"), 5)):
            with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
                gpt = SMALL_GPT[:-1] + ("5", "--save-every", "1", "--sample", "0", "--checkpoints", folder)
                done = run(*gpt, *keep)
                self.assertEqual(done.returncode, 0, done)
                self.assertEqual(sorted(os.listdir(folder)), ["step-%08d" % step for step in range(first, 6)])

    def test_checkpoints_of_another_run_stay(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            gpt = (*SMALL_GPT[:-1], "4", "--save-every", "1", "--sample", "0", "--checkpoints", folder)
            self.assertEqual(run(*SMALL_GPT, "--sample", "0", "--checkpoints", folder).returncode, 0)
            os.rename(os.path.join(folder, "step-00000001"), os.path.join(folder, "step-00000000"))
            done = run(*gpt, "--keep", "1")
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(sorted(os.listdir(folder)), ["step-00000000", "step-00000004"])
            done = run(*SMALL_GPT[:-1], "5", *gpt[len(SMALL_GPT):], "--keep", "1", "--resume")
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(sorted(os.listdir(folder)), ["step-00000005"])

    def test_a_run_exports_its_own_weights(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            used, fresh = os.path.join(folder, "used"), os.path.join(folder, "fresh")
            gpt = (*SMALL_GPT, "--sample", "0", "--checkpoints")
            longer = (*SMALL_GPT[:-1], "3", "--save-every", "1", "--sample", "0", "--seed", "7", "--checkpoints", used)
            self.assertEqual(run(*longer).returncode, 0)
            for root, name in ((used, "a"), (fresh, "b")):
                done = run(*gpt, root, "--export", os.path.join(folder, name))
                self.assertEqual(done.returncode, 0, done)
                self.assertIn("exported %s/step-00000001 as " % root, done.stdout)
            with open(os.path.join(folder, "a"), "rb") as a, open(os.path.join(folder, "b"), "rb") as b:
                self.assertEqual(a.read(), b.read())
            # From a run that is over: the checkpoint that it resumed, which need not be the newest.
            for name in os.listdir(os.path.join(used, "step-00000003")):
                os.truncate(os.path.join(used, "step-00000003", name), 0)
            done = run(*gpt, used, "--resume", "--export", os.path.join(folder, "c"))
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("exported %s/step-00000002 as " % used, done.stdout)

    @unittest.skipIf(os.geteuid() == 0, "root may remove anything")
    def test_a_checkpoint_that_cannot_go_ends_no_training(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            gpt = (*SMALL_GPT[:-1], "1", "--save-every", "1", "--sample", "0", "--checkpoints", folder)
            self.assertEqual(run(*gpt).returncode, 0)
            os.chmod(os.path.join(folder, "step-00000001"), 0o555)
            done = run(*SMALL_GPT[:-1], "3", *gpt[len(SMALL_GPT):], "--keep", "1", "--resume")
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("train_gpt: older checkpoints stay: ", done.stdout)
            self.assertIn("step-00000003", os.listdir(folder))

    def plan(self, ranks, mesh, *options):
        """The words of the line of rank 0, and the last line."""
        done = run("train_gpt", "--dry-run", str(ranks), "--mesh", mesh, *options)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn(f" over {ranks} ranks, {mesh.replace(',', ', ')}\n", done.stdout)
        lines = done.stdout.splitlines()
        return next(line.split() for line in lines[2:] if line.startswith("0")), lines[-1]

    def test_a_dry_run_counts_the_ranks_of_the_mesh(self):
        for shards, mesh in ((2, "replicate=2,shard=2"), (4, "shard=4")):
            table = run("train_gpt", "--dry-run", str(shards), "--mode", "fsdp").stdout.splitlines()
            row = next(words for words in map(str.split, table) if words[:2] == ["fsdp", "<"])
            found, idle = self.plan(4, mesh)
            self.assertEqual(found[0], "0,2" if shards == 2 else "0,1,2")  # 65 characters over 4 are 17, 17, 17 and 14
            self.assertEqual(found[1:7], row[2:8])
            self.assertIn("the mesh has no pipeline", idle)

    def test_a_dry_run_plans_the_stages_of_a_pipeline(self):
        whole, _ = self.plan(1, "shard=1")
        for schedule, idle in (("1f1b", "20.0"), ("interleaved", "11.1")):  # (p - 1) / (m + p - 1), / (v m + p - 1)
            first, last_line = self.plan(2, "pipeline=2", "--schedule", schedule)
            self.assertLess(float(first[1]), 0.6 * float(whole[1]))  # KiB
            self.assertIn(f"idle {idle} % of a step under {schedule}", last_line)
            self.assertIn("pipeline", first)
        found, _ = self.plan(8, "pipeline=2,replicate=1,shard=2,tensor=2", "--tie-embeddings", "--batch-size", "16")
        self.assertEqual(found[-12::3], ["pipeline", "replicate", "shard", "tensor"])
        for refused, why in (("pipeline=4", "has 8 stages"), ("pipeline=2,shard=5", "in 4 micro-batches each")):
            ranks = "10" if "shard" in refused else "4"
            self.refused(2, why, "train_gpt", "--dry-run", ranks, "--mesh", refused, "--schedule", "zbv")

    def test_a_dry_run_of_zero2_says_what_accumulation_takes(self):
        self.assertIn("while no_sync accumulates", run("train_gpt", "--dry-run", "2", "--mode", "zero2").stdout)
        self.assertNotIn("no_sync", run("train_gpt", "--dry-run", "2", "--mode", "zero1").stdout)

    def test_another_batch_size_does_not_resume(self):
        with tempfile.TemporaryDirectory(prefix="cohort-options-") as folder:
            command = (DIGITS_TRAINER, "--epochs", "1", "--checkpoints", folder)
            self.assertEqual(run(*command).returncode, 0)
            # Its two steps of an epoch would be below the number of the checkpoint that is there.
            self.refused(1, "was saved with --batch-size 48", *command, "--resume", "--batch-size", "700")
            self.assertEqual(run(*command, "--resume").returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
