#!/usr/bin/env python3
"""tools/release/release.py finds what is missing: release_test.py"""
import contextlib
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/release"))

import release  # noqa: E402


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dist = pathlib.Path(folder.name)

    def test_reads_a_section_of_the_changelog(self):
        text = "# Changelog\n\n## 1.2.0 (2027-01-02)\n\na\nb\n\n## 1.1.0\n\nc\n"
        self.assertEqual(release.section(text, "1.2.0"), ("2027-01-02", 2))
        self.assertEqual(release.section(text, "1.1.0"), ("", 1))
        self.assertIsNone(release.section(text, "1.3.0"))

    def make(self, *names):
        for name in names:
            (self.dist / name).write_text("a", encoding="utf-8")

    def make_all(self, number="1.2.0"):
        names = ("libcohort0", "libcohort-dev", "dlaunch", "cohort-trainer")
        self.make(*[f"{name}_{number}-1_amd64.deb" for name in names], f"dlaunch-{number}-x.whl", f"cohort-{number}.cdx.json",
                  *[f"{name.replace('-dev', '-devel')}-{number}-1.x86_64.rpm" for name in names],
                  f"cohort-{number}.tar.gz", f"cohort-{number}-Linux-x86_64.tar.gz")

    def found(self):
        return {text.split(" of 1")[0]: holds for holds, text, _ in release.check_packages("1.2.0", self.dist)}

    def test_finds_missing_packages(self):
        self.make("dlaunch-1.2.0-x.whl")
        self.assertEqual(self.found(), {"wheel": True, "Debian packages": False, "RPM": False, "tarballs": False,
                                        "list of linked libraries": False})

    def test_wants_each_package(self):
        self.make_all()
        self.assertTrue(all(self.found().values()))
        for file in list(self.dist.iterdir()):
            file.unlink()
            self.assertEqual(list(self.found().values()).count(False), 1, file.name)
            file.mkdir()
            self.assertEqual(list(self.found().values()).count(False), 1, file.name)
            file.rmdir()
            self.make(file.name)

    def test_wants_packages_of_this_very_version(self):
        for number in ("11.2.0", "1.2.01", "1.2.0.1", "1x2.0"):
            self.make_all(number)
        self.assertFalse(any(self.found().values()))

    def write_sums(self, *lines):
        (self.dist / "SHA256SUMS").write_bytes(b"".join(line + b"\n" for line in lines))
        return [(holds, text) for holds, text, _ in release.check_sums("1.2.0", self.dist) if "signature" not in text]

    def test_compares_checksums(self):
        self.make("dlaunch-1.2.0-x.whl", "dlaunch-1.1.0-x.whl")
        right = hashlib.sha256(b"a").hexdigest().encode()
        for mark in (b" ", b"*"):
            self.assertEqual(self.write_sums(right + b" " + mark + b"dlaunch-1.2.0-x.whl"), [(True, "SHA256SUMS has every package")])
        self.assertFalse(self.write_sums(right[::-1] + b"  dlaunch-1.2.0-x.whl")[0][0])
        self.assertFalse(self.write_sums(right + b"  dlaunch-1.1.0-x.whl")[0][0])

    def test_shows_a_line_that_is_no_checksum(self):
        self.make("dlaunch-1.2.0-x.whl")
        right = hashlib.sha256(b"a").hexdigest().encode() + b"  dlaunch-1.2.0-x.whl"
        for line, shown in ((b"word", "'word'"), (b"\x00\xff\x1b", r"'\x00\ufffd\x1b'")):
            self.assertEqual(self.write_sums(right, b"", line), [
                (True, "SHA256SUMS has every package"), (False, f"each line of SHA256SUMS is a checksum and a name; not {shown}")])

    def run_copy(self, **environment):
        """The script in a folder that is no clone: the exit status and the output."""
        copy = self.dist / "copy/tools/release/release.py"
        copy.parent.mkdir(parents=True)
        shutil.copy(release.__file__, copy)
        ran = subprocess.run([sys.executable, "-B", copy, "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             check=False, env={**os.environ, **environment})
        return ran.returncode, ran.stdout

    def test_stops_where_there_is_no_clone(self):
        if shutil.which("git") is None:
            self.skipTest("there is no git")
        subprocess.run(["git", "init", "-q", self.dist], check=True)  # the copy lies in a clone, but is none
        status, text = self.run_copy()
        self.assertEqual(status, 1)
        self.assertRegex(text, r"\Atools/dev release: git finds no clone at .*/copy, .*\n\Z")

    def test_stops_where_there_is_no_git(self):
        status, text = self.run_copy(PATH=str(self.dist))
        self.assertEqual(status, 1)
        self.assertRegex(text, r"\Atools/dev release: there is no program git, .*\n\Z")

    def test_wants_a_run_of_ci_for_this_very_commit(self):
        record = self.dist / "build/release/ci-passed"
        with unittest.mock.patch.object(release, "ROOT", self.dist), \
                unittest.mock.patch.object(release, "git", lambda *arguments: "abc123"):
            self.assertFalse(next(release.check_tests("1.2.0", self.dist))[0])
            record.parent.mkdir(parents=True)
            (record.parent / "ctest.log").write_text("100% tests passed, 0 tests failed out of 1\n", encoding="utf-8")
            self.assertFalse(next(release.check_tests("1.2.0", self.dist))[0])  # any run of a test leaves that
            record.write_text("abc122\n", encoding="utf-8")
            self.assertFalse(next(release.check_tests("1.2.0", self.dist))[0])
            record.write_text("abc123\n", encoding="utf-8")
            self.assertTrue(next(release.check_tests("1.2.0", self.dist))[0])

    def test_counts_what_is_missing(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), unittest.mock.patch.object(release, "git", lambda *arguments: ""):
            missing = release.walk(self.dist)
        self.assertGreaterEqual(missing, 5)  # of packages and signatures
        self.assertEqual(out.getvalue().count("missing  "), missing)
        self.assertEqual(out.getvalue().count("remedy: "), missing)


if __name__ == "__main__":
    unittest.main()
