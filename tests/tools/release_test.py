#!/usr/bin/env python3
"""tools/release/release.py finds what is missing: release_test.py"""
import contextlib
import hashlib
import io
import pathlib
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

    def test_finds_missing_packages(self):
        (self.dist / "dlaunch-1.2.0-x.whl").write_text("a", encoding="utf-8")
        found = {text.split(" of ")[0]: holds for holds, text, _ in release.check_packages("1.2.0", self.dist)}
        self.assertEqual(found, {"wheel": True, "Debian packages": False, "RPM": False, "tarballs": False})

    def test_compares_checksums(self):
        wheel = self.dist / "dlaunch-1.2.0-x.whl"
        wheel.write_text("a", encoding="utf-8")
        (self.dist / "SHA256SUMS").write_text(hashlib.sha256(b"a").hexdigest() + f"  {wheel.name}\n", encoding="utf-8")
        self.assertTrue(next(release.check_sums("1.2.0", self.dist))[0])
        wheel.write_text("b", encoding="utf-8")
        self.assertFalse(next(release.check_sums("1.2.0", self.dist))[0])

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
        with contextlib.redirect_stdout(out):
            missing = release.walk(self.dist)
        self.assertGreaterEqual(missing, 5)  # four kinds of packages and the signature
        self.assertEqual(out.getvalue().count("missing  "), missing)
        self.assertEqual(out.getvalue().count("remedy: "), missing)


if __name__ == "__main__":
    unittest.main()
