"""Manual pages and pages of reference: each renders without a warning, and the pages in the tree are what programs print.

  manual_test.py <source> <folder of manual pages> <program>...
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

SOURCE, PAGES = sys.argv[1:3]
PROGRAMS = sys.argv[3:]
DEADLINE_S = 60


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **more)


def folder_of(program):
    return "launcher" if program == "dlaunch" else "tools/" + program


class ManualTest(unittest.TestCase):
    maxDiff = None

    def each(self):
        self.assertTrue(PROGRAMS)
        for path in PROGRAMS:
            yield os.path.basename(path), path

    def test_manual_pages_render_without_a_warning(self):
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed")
        for name, path in self.each():
            page = run(path, "--describe", "man").stdout
            for width in ("60n", "78n", "200n"):
                done = run("groff", "-man", "-Tutf8", "-ww", "-Kutf8", "-b", f"-rLL={width}", "-P-c", input=page)
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)
                self.assertIn(name.upper() + "(1)", done.stdout)

    def test_man_shows_the_pages(self):
        if shutil.which("man") is None:
            self.skipTest("man is not installed")
        for name, _ in self.each():
            done = run("man", "--warnings", "-l", f"{PAGES}/{name}.1", env={**os.environ, "MANWIDTH": "80"})
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            if "OPTIONS" not in done.stdout:  # a man that a container's image has replaced
                self.skipTest("man shows no page here: " + done.stdout.strip()[:80])
            for text in (name, "SYNOPSIS", "EXAMPLES", "--help"):
                self.assertIn(text, done.stdout)

    def test_pages_that_are_installed_are_those_that_programs_print(self):
        for name, path in self.each():
            with open(f"{PAGES}/{name}.1", encoding="utf-8") as file:
                self.assertEqual(file.read(), run(path, "--describe", "man").stdout)

    def test_pages_of_reference_are_those_that_programs_print(self):
        for name, path in self.each():
            page = f"{folder_of(name)}/OPTIONS.md"
            with open(f"{SOURCE}/{page}", encoding="utf-8") as file:
                self.assertEqual(file.read(), run(path, "--describe", "markdown").stdout,
                                 f"{page} is old; write it again: {path} --describe markdown > {page}")

    def test_every_long_option_of_the_help_is_in_the_manual_page(self):
        for name, path in self.each():
            shown = run(path, "--help").stdout
            page = run(path, "--describe", "man").stdout.replace("\\-", "-")
            # The first name of each option; others are what users of other programs type.
            options = {re.search(r"--[a-z][a-z_-]*", line).group(0) for line in shown.splitlines()
                       if re.match(r"  (-\w, ?|-\w,)?--[a-z]", line)}
            self.assertGreater(len(options), 1)
            for option in options:
                self.assertIn(option, page, name)

    def test_another_form_is_refused(self):
        for name, path in self.each():
            done = run(path, "--describe", "pdf")
            self.assertEqual(done.returncode, 2)
            self.assertIn("man, markdown, bash, zsh, fish", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
