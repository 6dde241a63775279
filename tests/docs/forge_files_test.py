#!/usr/bin/env python3
"""The files of a public forge: workflows say that they never ran, issue forms have what forms need, and where yamllint,
check-jsonschema and actionlint are there, they find nothing. forge_files_test.py [FOLDER OF PROGRAMS]"""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
PLACES = os.pathsep.join([*sys.argv[1:], str(ROOT / "build/docs/env/bin"), os.environ["PATH"]])
sys.argv[1:] = []

try:
    import yaml
except ImportError:
    yaml = None


class ForgeFiles(unittest.TestCase):
    def run_linter(self, name, *arguments):
        program = shutil.which(name, path=PLACES)
        if program is None:
            self.skipTest(f"there is no {name}" + ("" if name == "actionlint" else ": tools/dev docs installs it"))
        ran = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=ROOT)
        self.assertEqual(ran.returncode, 0, ran.stdout)

    def test_workflows_say_that_they_never_ran(self):
        self.assertTrue(WORKFLOWS)
        for file in WORKFLOWS:
            self.assertTrue(file.read_text(encoding="utf-8").startswith("# Never run:"), file)

    @unittest.skipIf(yaml is None, "this Python has no yaml")
    def test_forms(self):
        for file in FORMS:
            form = yaml.safe_load(file.read_text(encoding="utf-8"))
            if file.name == "config.yml":
                continue
            self.assertLessEqual({"name", "description", "body"}, set(form), file)
            names = [part["id"] for part in form["body"] if part["type"] != "markdown"]
            self.assertEqual(len(names), len(set(names)), file)

    def test_workflows_run_what_is_there(self):
        text = "".join(file.read_text(encoding="utf-8") for file in WORKFLOWS)
        for command in (".ci/run", "tools/dev docs", "tools/dev wheel"):
            self.assertIn(command, text)
            self.assertTrue((ROOT / command.split()[0]).exists())

    def test_yamllint(self):
        self.run_linter("yamllint", "-d", "{extends: default, rules: {line-length: {max: 160}, braces: {max-spaces-inside: 0}, "
                        "document-start: disable, comments-indentation: disable}}", ".github")

    def test_schema_of_workflows(self):
        self.run_linter("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS))

    def test_actionlint(self):
        self.run_linter("actionlint", *map(str, WORKFLOWS))


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for _, reason in result.skipped:
        print(f"skipped: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if len(result.skipped) >= 3 else 0)
