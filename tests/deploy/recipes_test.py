"""recipes_test.py <root of the project>: the recipes for Conan and Spack name options, packages and the version that there
are. Conan's recipe is loaded by Conan where that is installed; Spack's runs with stand-ins for Spack's directives."""
import contextlib
import ast
import json
import pathlib
import re
import shutil
import subprocess
import sys
import types
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
VERSION = re.search(r"project\(cohort VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
CONAN = ROOT / "deploy/conan"
SPACK = ROOT / "deploy/spack/spack_repo/cohort/packages/cohort/package.py"


def build_options():
    """COHORT_* that the build knows."""
    text = (ROOT / "CMakeLists.txt").read_text()
    text += "".join(path.read_text() for path in (ROOT / "tools/cmake").glob("*.cmake"))
    found = set(re.findall(r"option\((COHORT_\w+)", text)) | set(re.findall(r"set\((COHORT_\w+) \S+ CACHE", text))
    (names,) = re.findall(r"foreach\(name IN ITEMS ([A-Z ]+)\)", text)
    return found | {f"COHORT_WITH_{name}" for name in names.split()}


class Spec:
    def __init__(self, *variants):
        self.variants = variants

    def satisfies(self, text):
        return text in self.variants


class Recorder:
    """Stands for spack.package: keeps what the directives are called with."""

    def __init__(self):
        self.calls = []

    def directive(self, name):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return contextlib.nullcontext()
        return call


class CMakePackage:
    spec = Spec("+launcher", "+trainer", "+ucx")

    def define(self, name, value):
        return f"-D{name}={value}"

    def define_from_variant(self, name, variant):
        return f"-D{name}:from={variant}"


class Recipes(unittest.TestCase):
    def spack(self):
        recorder, names = Recorder(), ("license", "version", "variant", "depends_on", "conflicts", "when")
        modules = {name: types.ModuleType(name) for name in (
            "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems", "spack_repo.builtin.build_systems.cmake",
            "spack", "spack.package")}
        cmake = modules["spack_repo.builtin.build_systems.cmake"]
        cmake.CMakePackage, cmake.generator = CMakePackage, recorder.directive("generator")  # spack.package has no generator
        for name in names:
            setattr(modules["spack.package"], name, recorder.directive(name))
        sys.modules.update(modules)
        space = {}
        exec(compile(SPACK.read_text(), SPACK, "exec"), space)
        return space["Cohort"], recorder.calls

    def test_spack_builds_this_version(self):
        _, calls = self.spack()
        self.assertEqual([arguments[0] for name, arguments, _ in calls if name == "version"], [VERSION])

    def test_spack_sets_options_of_the_build(self):
        recipe, calls = self.spack()
        variants = {arguments[0] for name, arguments, _ in calls if name == "variant"}
        for argument in recipe().cmake_args():
            name, _, value = argument.removeprefix("-D").partition("=")
            self.assertIn(name.removesuffix(":from"), build_options())
            if name.endswith(":from"):
                self.assertIn(value, variants)

    def test_conan_sets_options_of_the_build(self):
        names = set(re.findall(r'"(COHORT_\w+)"', (CONAN / "conanfile.py").read_text()))
        self.assertTrue(names)
        self.assertEqual(names - build_options(), set())

    @staticmethod
    def conan_packages():
        """{list: its packages}"""
        module = ast.parse((CONAN / "conanfile.py").read_text())
        return {node.targets[0].id: ast.literal_eval(node.value) for node in module.body if isinstance(node, ast.Assign)}

    def test_each_build_has_the_parser_of_command_lines_and_json(self):
        self.assertLessEqual({"libcli11-dev", "nlohmann-json3-dev"}, set(self.conan_packages()["BUILD"].split()))
        always = set(re.findall(r'^    depends_on\("([a-z0-9-]+)', SPACK.read_text(), re.MULTILINE))
        self.assertLessEqual({"cli11", "nlohmann-json"}, always)

    def test_conan_installs_packages_that_the_project_is_built_with(self):
        lists = self.conan_packages()
        self.assertEqual(set(lists), {"BUILD", "LAUNCHER", "TRAINER"})
        named = {name for words in lists.values() for name in words.split()}
        known = {line.split()[1] for line in (ROOT / "tools/debian-packages.txt").read_text().splitlines()
                 if line.startswith("build ")}
        self.assertTrue(named)
        self.assertEqual(named - known, set())

    def test_conan_loads_its_recipe(self):
        if not shutil.which("conan"):
            self.skipTest("there is no conan: pip install conan")
        answer = subprocess.run(["conan", "inspect", CONAN, "--format", "json"], check=True, capture_output=True, text=True)
        self.assertEqual(json.loads(answer.stdout)["version"], VERSION)


unittest.main()
