"""deploy/container/Containerfile names what there is: images, files, presets, packages; and its packages hold every
library that the built programs need. No image is built."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

if not (shutil.which("dpkg-query") and shutil.which("readelf")):
    print("skipped: no dpkg or no readelf here, which tell libraries and their packages")
    sys.exit(77)

if 'VERSION_ID="12"' not in pathlib.Path("/etc/os-release").read_text():
    print("skipped: this is not Debian 12, whose packages the image has")
    sys.exit(77)

PROGRAMS = [pathlib.Path(program) for program in sys.argv[2:]]
ROOT = pathlib.Path(sys.argv[1]).resolve().parents[2]
CONTAINERFILE = pathlib.Path(sys.argv[1]).read_text()
del sys.argv[1:]
# Loaded at run time, so that no program names them.
LOADED = {"libucp.so.0"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def answers(*command):
    return subprocess.run(command, capture_output=True).returncode == 0


def instructions(*names):
    """The arguments of each instruction of these names, on one line."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    found = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [" ".join(words[1].split()) for words in found if words[0] in names]


def installed_packages():
    (stage,) = re.findall(r"apt-get install --no-install-recommends -y \\\n(.*?)&&", CONTAINERFILE, re.DOTALL)
    return set(stage.replace("\\", "").split())


def with_dependencies(packages):
    depends = {}
    for line in output("dpkg-query", "--show", "--showformat", "${Package}|${Depends},${Pre-Depends}\n").splitlines():
        package, _, names = line.partition("|")
        depends[package] = {re.split(r"[ :(]", name.strip())[0] for name in re.split(r"[,|]", names)}
    found, rest = set(), set(packages)
    while rest:
        package = rest.pop()
        if package not in found:
            found.add(package)
            rest |= depends.get(package, set())
    return found


def packages_of(libraries):
    """Maps each library to the packages that hold it, as far as this machine has them."""
    paths, names = {}, set()
    for library, path in re.findall(r"^\s*(\S+) .*=> (\S+)$", output("/sbin/ldconfig", "-p"), re.MULTILINE):
        if library in libraries:
            real = str(pathlib.Path(path).resolve())
            paths.setdefault(library, set()).update({real, real.removeprefix("/usr")})
            names |= paths[library]
    found = {}  # what dpkg does not know is told on its standard error
    answer = subprocess.run(["dpkg-query", "--search", *sorted(names)], capture_output=True, text=True)
    for line in answer.stdout.splitlines():
        packages, _, path = line.rpartition(": ")
        found.setdefault(path, set()).update(name.split(":")[0] for name in packages.split(", "))
    return {library: set().union(*(found.get(path, set()) for path in paths.get(library, ()))) for library in libraries}


class File(unittest.TestCase):
    def test_builds_and_runs_on_the_same_debian(self):
        bases = [stage.split(" AS ")[0] for stage in instructions("FROM")]
        self.assertEqual(bases, ["docker.io/library/debian:12"] * 2)

    def test_copies_what_is_there(self):
        stages = [stage.partition(" AS ")[2] for stage in instructions("FROM")]
        prefixes = re.findall(r"cmake --install \S+ --prefix (\S+)", CONTAINERFILE)
        copies = instructions("COPY", "ADD")
        self.assertEqual(len(copies), 2)
        for copy in copies:
            *sources, _ = (word for word in copy.split() if not word.startswith("--"))
            stage = re.match(r"--from=(\S+)", copy)
            if stage:
                self.assertIn(stage[1], stages)
                self.assertEqual(sources, prefixes, "what is copied is what was installed")
                continue
            for source in sources:
                self.assertTrue((ROOT / source).exists(), f"COPY {copy}")

    def test_runs_what_is_there(self):
        for command in instructions("RUN"):
            subprocess.run(["sh", "-n", "-c", command], check=True)
        commands = "\n".join(instructions("RUN"))
        self.assertTrue(re.search(r"^tools/dev setup$", commands, re.MULTILINE))
        self.assertIn("\ncmd_setup()", (ROOT / "tools/dev").read_text())
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        for kind, option in (("configurePresets", "cmake --preset"), ("buildPresets", "--build --preset")):
            used = re.findall(rf"{option} (\S+)", commands)
            self.assertTrue(used)
            self.assertLessEqual(set(used), {preset["name"] for preset in presets[kind]})
        for option in re.findall(r"-D(\w+)=", commands):
            self.assertRegex((ROOT / "CMakeLists.txt").read_text(), rf"\boption\({option}\b")
        (start,) = instructions("CMD")
        self.assertIn(json.loads(start)[0], {program.name for program in PROGRAMS})

    def test_installs_packages_of_debian(self):
        packages = installed_packages()
        self.assertIn("libgrpc++1.51", packages)
        unknown = []
        for package in sorted(packages):
            tools = ["dpkg-query", "--show"], ["apt-cache", "show"]
            if not any(shutil.which(tool[0]) and answers(*tool, package) for tool in tools):
                unknown.append(package)
        if unknown and not list(pathlib.Path("/var/lib/apt/lists").glob("*_Packages*")):
            self.skipTest(f"not installed here, and no package lists to look in: {unknown}")
        self.assertEqual(unknown, [])


class Image(unittest.TestCase):
    def test_holds_every_needed_library(self):
        self.assertTrue(PROGRAMS)
        needed = set(LOADED)
        for program in PROGRAMS:
            needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "--dynamic", "--wide", str(program))))
        image = with_dependencies(installed_packages()) | {"libc6", "libgcc-s1", "libstdc++6"}
        for library, packages in sorted(packages_of(needed).items()):
            if library in LOADED and not packages:
                continue  # not installed on this machine
            self.assertTrue(packages, f"no package here has {library}")
            self.assertTrue(packages & image, f"{library} is in {packages}, which the image has not")


unittest.main()
