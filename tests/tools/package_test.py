#!/usr/bin/env python3
"""tools/package/make among fakes of CMake and CPack, and the usage of scripts for packages: package_test.py <repository>"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(sys.argv[1]).resolve()
CPACK = """#!/bin/sh
mkdir -p packages
case $2 in DEB) suffix=.deb ;; RPM) suffix=.rpm ;; TGZ) [ -z "$FAILS" ] || exit 1; suffix=-Linux-x.tar.gz ;; esac
echo new >packages/cohort-trainer-1.2.0$suffix
"""
OLD = {"cohort-trainer_1.1.0.deb", "cohort-1.2.0.tar.gz", "dlaunch-1.2.0-x.whl", "dlaunch-1.1.0-x.whl", "cohort-1.1.0.tar.gz", "SHA256SUMS"}
NEW = {"cohort-trainer-1.2.0.deb", "cohort-trainer-1.2.0.rpm", "cohort-trainer-1.2.0-Linux-x.tar.gz", "cohort-1.2.0.cdx.json", "dlaunch-1.2.0-x.whl"}


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-package-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("build/CMakeCache.txt", "CMAKE_PROJECT_VERSION:STATIC=1.2.0\nCMAKE_INSTALL_LIBDIR:PATH=lib\n")
        self.write("build/package/log", "")
        self.write("tools/package/sbom.py", "print('{}')\n")
        for name in ("cmake", "dpkg-shlibdeps", "dpkg-architecture", "rpmbuild"):
            self.write(f"fakes/{name}", "#!/bin/sh\n")
        self.write("fakes/cpack", CPACK)
        for name in OLD:
            self.write(f"dist/{name}", "old\n")
        shutil.copy(REPOSITORY / "tools/package/make", self.root / "tools/package/make")

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")
        (self.root / name).chmod(0o755)

    def make(self, fails=""):
        """The exit status, and the names in dist; nothing may stay beside it."""
        path = f"{self.root}/fakes:{os.environ['PATH']}"
        ran = subprocess.run([self.root / "tools/package/make", "build", "dist"], cwd=self.root, capture_output=True, check=False,
                             env={**os.environ, "PATH": path, "FAILS": fails, "GIT_CEILING_DIRECTORIES": str(self.root.parent)})
        self.assertEqual({file.name for file in self.root.iterdir()}, {"build", "tools", "fakes", "dist"})
        return ran.returncode, {file.name for file in (self.root / "dist").iterdir()}

    def test_replaces_the_old_set_and_keeps_other_versions(self):
        self.assertEqual(self.make(), (0, NEW | {"dlaunch-1.1.0-x.whl", "cohort-1.1.0.tar.gz", "SHA256SUMS"}))
        sums = (self.root / "dist/SHA256SUMS").read_text(encoding="utf-8").splitlines()
        self.assertEqual([line[66:] for line in sums], sorted(NEW))
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.root / "dist", check=True)

    def test_keeps_the_old_set_where_it_fails(self):
        self.assertEqual(self.make(fails="yes"), (1, OLD))
        self.assertEqual((self.root / "dist/SHA256SUMS").read_text(encoding="utf-8"), "old\n")

    def test_each_script_shows_its_usage(self):
        for name in ("tools/package/make", "tools/wheel/make", *(f"tests/package/{name}.sh" for name in ("bare_root", "wheel_roots", "install_test"))):
            for words, status in (["--help"], 0), (["-h"], 0), ([], 2):
                ran = subprocess.run([REPOSITORY / name, *words], cwd=self.root, capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, status, ran.stderr)
                self.assertTrue((ran.stderr if status else ran.stdout).startswith(os.path.basename(name)), name)

    def test_names_packages_that_are_not_there(self):
        for name, word in ("bare_root", "dist"), ("wheel_roots", "none.whl"):
            ran = subprocess.run([REPOSITORY / f"tests/package/{name}.sh", word], cwd=self.root, capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 1)
            self.assertIn(f"{name}.sh: there is no ", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
