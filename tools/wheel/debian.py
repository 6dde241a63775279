"""Debian's packages and sources, from where this machine has its packages. apt-get's own lists and settings stay as they are."""

import glob
import os
import re
import shutil
import subprocess
import sys


def run(command, log, **options):
    """Whether the command succeeded; its output goes to the end of the file `log`."""
    with open(log, "a", encoding="utf-8") as output:
        ran = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, **options)
    return ran.returncode == 0


def last_lines(log, count):
    with open(log, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-count:])


def source_of(package):
    """Name and version of the source of a package that is installed here; None: it is not."""
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}\n", package], capture_output=True,
                           text=True, check=False)
    return asked.stdout.splitlines()[0].split() if asked.returncode == 0 else None


class Archive:
    """This machine's package sources, asked for sources or for packages of another architecture. The folder keeps apt-get's
    lists. An error of apt-get raises OSError with its last lines."""

    def __init__(self, folder, architecture=None):
        self.folder = folder
        self.architecture = architecture  # None: sources
        self.log = os.path.join(folder, "apt.log")
        self.options = None

    def write_list(self):
        """The machine's package sources, asked for sources or for packages."""
        kind = "deb" if self.architecture else "deb-src"
        parts = os.path.join(self.folder, "apt", "parts")
        os.makedirs(parts, exist_ok=True)
        for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]:
            if os.path.isfile(path) and path.endswith((".list", ".sources")):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                text = re.sub(r"(?m)^(Types:).*$", rf"\1 {kind}", text)
                text = re.sub(r"(?m)^deb(-src)?(?=\s)", kind, text)
                with open(os.path.join(parts, os.path.basename(path)), "w", encoding="utf-8") as file:
                    file.write(text)
        return parts

    def prepare(self):
        parts = self.write_list()
        own = os.path.join(self.folder, "apt")
        for name in ("lists/partial", "cache/archives/partial", "state"):
            os.makedirs(os.path.join(own, name), exist_ok=True)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        self.options = ["-q", "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={parts}", "-o",
                        f"Dir::State::Lists={own}/lists", "-o", f"Dir::Cache={own}/cache", "-o", f"APT::Sandbox::User={user}"]
        if self.architecture:  # a machine of that architecture on which nothing is installed
            with open(os.path.join(own, "state", "status"), "w", encoding="utf-8"):
                pass
            self.options += ["-o", f"APT::Architecture={self.architecture}", "-o", f"APT::Architectures={self.architecture}",
                             "-o", f"Dir::State::Status={own}/state/status", "-o", f"Dir::State={own}/state"]
        self.apt_get("update", check=False)  # a source that has none of these fails it

    def apt_get(self, *command, check=True, **options):
        if self.options is None:
            self.options = []
            self.prepare()
        if not run(["apt-get", *self.options, *command], self.log, **options) and check:
            raise OSError(f"apt-get {command[0]} failed ({self.log}):\n{last_lines(self.log, 5)}")

    def source(self, name, version):
        """The folder of an unpacked source, with Debian's patches. Needs dpkg-dev."""
        unpacked = os.path.join(self.folder, "source", name)
        shutil.rmtree(unpacked, ignore_errors=True)
        os.makedirs(unpacked)
        self.apt_get("source", "--only-source", f"{name}={version}", cwd=unpacked)
        return next(entry.path for entry in os.scandir(unpacked) if entry.is_dir())

    def packages(self, names):
        """The files of the packages and of all that they depend on."""
        self.apt_get("install", "--download-only", "--no-install-recommends", "-y", *names)
        return sorted(glob.glob(os.path.join(self.folder, "apt", "cache", "archives", "*.deb")))


def fail(text):
    sys.exit(f"tools/wheel: {text}")
