"""components_test.py <build folder>: each installed file belongs to one package and lies in the right one."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv.pop(1)
PACKAGES = ("runtime", "development", "dlaunch", "trainer")


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def kind(path):
    """The package that a file belongs to by its name."""
    name = pathlib.PurePath(path).name
    if "libcohort_" in name and "trainer" not in name and not name.endswith((".so", ".a")):
        return "runtime"
    data = path.startswith("share/cohort/") and name.endswith((".csv", ".txt"))
    if "trainer" in name or name.startswith(("train_", "port_")) or data:
        return "trainer"
    if path.startswith("lib/cohort/"):
        return "dlaunch"
    if path.startswith("include/cohort/trainer/"):
        return None  # the mesh, placement and schedules need no libtorch
    return "development" if path.startswith(("include/", "lib")) else "dlaunch"


class Components(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        cls.all = cls.install(root / "all")
        cls.parts = {name: cls.install(root / name, "--component", name) for name in PACKAGES}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @staticmethod
    def install(folder, *options):
        folder.mkdir()
        subprocess.run(["cmake", "--install", BUILD, "--prefix", folder, *options], check=True, stdout=subprocess.DEVNULL)
        return files(folder)

    def test_no_file_is_in_two_packages(self):
        for name, part in self.parts.items():
            for other, rest in self.parts.items():
                self.assertEqual(part & rest if name < other else set(), set(), f"{name} and {other}")

    def test_every_file_is_in_a_package(self):
        self.assertEqual(self.all - set().union(*self.parts.values()), set())

    def test_files_are_in_the_package_of_their_kind(self):
        wrong = [(path, name) for name, part in self.parts.items() for path in sorted(part)
                 if not path.startswith("share/doc/") and kind(path) not in (None, name)]
        self.assertEqual(wrong, [])

    def test_every_package_has_the_licence(self):
        for name, part in self.parts.items():
            if part:
                self.assertTrue(any(path.endswith("/copyright") for path in part), name)


unittest.main()
