"""The packages that deploy/container/Containerfile installs hold every library that the built programs need."""
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
CONTAINERFILE = pathlib.Path(sys.argv[1]).read_text()
del sys.argv[1:]
# Loaded at run time, so that no program names them.
LOADED = {"libucp.so.0"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


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
