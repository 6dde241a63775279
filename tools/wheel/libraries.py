#!/usr/bin/env python3
"""Builds the archives that the wheel links and Debian has not: libraries.py <folder> [<compiler> <CMake option>...]

Debian's archives of Abseil and Protobuf are not position-independent, so a Python module cannot hold them; prometheus-cpp
and civetweb have none. They are built from Debian's own sources of the installed versions into <folder>/lib, and again
only when a version or the compiler changes. The sources come by apt-get, whose own lists and settings stay as they are."""

import os
import re
import shutil
import subprocess
import sys

# Installed package: CMake targets, archives, and options of its build, which follow Debian's.
PACKAGES = {
    "libabsl-dev": (["bad_variant_access", "hash", "statusor", "str_format_internal", "synchronization"], "libabsl_*.a", [
        "-DCMAKE_CXX_STANDARD=17", "-DABSL_BUILD_TESTING=OFF"]),
    "libprotobuf-dev": (["libprotobuf"], "libprotobuf.a", [
        "-Dprotobuf_BUILD_TESTS=OFF", "-Dprotobuf_BUILD_PROTOC_BINARIES=OFF", "-Dprotobuf_WITH_ZLIB=OFF"]),
    "libcivetweb-dev": (["all"], "libcivetweb*.a", [
        "-DCIVETWEB_BUILD_TESTING=OFF", "-DCIVETWEB_ENABLE_CXX=ON", "-DCIVETWEB_ENABLE_WEBSOCKETS=ON",
        "-DCIVETWEB_ENABLE_ASAN=OFF", "-DCIVETWEB_ENABLE_SSL=OFF", "-DCIVETWEB_ENABLE_SERVER_EXECUTABLE=OFF"]),
    "prometheus-cpp-dev": (["all"], "libprometheus-cpp-*.a", [
        "-DENABLE_PUSH=OFF", "-DENABLE_TESTING=OFF", "-DUSE_THIRDPARTY_LIBRARIES=OFF", "-DGENERATE_PKGCONFIG=OFF"]),
}


def fail(text):
    sys.exit(f"libraries.py: {text}")


def run(command, log, **options):
    with open(log, "a", encoding="utf-8") as output:
        ran = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, **options)
    return ran.returncode == 0


def source_of(package):
    """Name and version of the source of an installed package."""
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}\n", package], capture_output=True,
                           text=True, check=False)
    if asked.returncode != 0:
        fail(f"{package} is not installed; tools/dev setup installs it")
    return asked.stdout.splitlines()[0].split()


class Sources:
    """Debian's sources, from where this machine has its packages."""

    def __init__(self, folder):
        self.folder = folder
        self.log = os.path.join(folder, "sources.log")
        self.options = None

    def write_list(self):
        """The machine's package sources, asked for sources instead of packages."""
        parts = os.path.join(self.folder, "apt", "parts")
        os.makedirs(parts, exist_ok=True)
        paths = ["/etc/apt/sources.list"]
        paths += [os.path.join("/etc/apt/sources.list.d", name) for name in sorted(os.listdir("/etc/apt/sources.list.d"))]
        for path in paths:
            if os.path.isfile(path) and path.endswith((".list", ".sources")):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                text = re.sub(r"(?m)^(Types:).*$", r"\1 deb-src", text)
                text = re.sub(r"(?m)^deb(-src)?(?=\s)", "deb-src", text)
                with open(os.path.join(parts, os.path.basename(path)), "w", encoding="utf-8") as file:
                    file.write(text)
        return parts

    def prepare(self):
        parts = self.write_list()
        own = os.path.join(self.folder, "apt")
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(own, name), exist_ok=True)
        self.options = ["-q", "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={parts}", "-o",
                        f"Dir::State::Lists={own}/lists", "-o", f"Dir::Cache={own}/cache", "-o", f"APT::Sandbox::User={user()}"]
        run(["apt-get", *self.options, "update"], self.log)  # a source that has none of these fails it

    def fetch(self, name, version):
        """The unpacked source, with Debian's patches."""
        unpacked = os.path.join(self.folder, "source", name)
        if self.options is None:
            self.prepare()
        shutil.rmtree(unpacked, ignore_errors=True)
        os.makedirs(unpacked)
        if not run(["apt-get", *self.options, "source", "--only-source", f"{name}={version}"], self.log, cwd=unpacked):
            with open(self.log, encoding="utf-8", errors="replace") as file:
                print(*file.readlines()[-5:], sep="", file=sys.stderr)
            fail(f"apt-get source {name}={version} failed ({self.log}). It needs the network, dpkg-dev and a package source "
                 f"that has this version: apt-get update && apt-get install dpkg-dev, and upgrade the package that {name} "
                 "is the source of.")
        return next(entry.path for entry in os.scandir(unpacked) if entry.is_dir())


def user():
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def build(source, folder, compiler, targets, options):
    log = os.path.join(folder, "build.log")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    cache = shutil.which("ccache")
    launcher = [f"-DCMAKE_{language}_COMPILER_LAUNCHER={cache}" for language in ("C", "CXX") if cache]
    configure = ["cmake", "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release",
                 "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG", "-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
                 *launcher, *options]
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    if not (run(configure, log) and run(["cmake", "--build", folder, "-j", jobs, "--target", *targets], log)):
        with open(log, encoding="utf-8", errors="replace") as file:
            print(*file.readlines()[-20:], sep="", file=sys.stderr)
        fail(f"the build of {source} failed; {log} has all of its output")


def main():
    folder, compiler, *options = [*sys.argv[1:2], *(sys.argv[2:] or ["c++"])]
    folder = os.path.abspath(folder)
    library = os.path.join(folder, "lib")
    os.makedirs(library, exist_ok=True)
    about = subprocess.run([compiler, "-v"], capture_output=True, text=True, check=True).stderr.splitlines()[-1]
    machine = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    sources = Sources(folder)
    for package, (targets, archives, own_options) in PACKAGES.items():
        name, version = source_of(package)
        made_of = f"{version} {about} {machine} {own_options} {options}\n"
        stamp = os.path.join(library, f"{name}.txt")
        if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == made_of:
            continue
        print(f"    building {name} {version}", flush=True)
        build_folder = os.path.join(folder, "build", name)
        build(sources.fetch(name, version), build_folder, compiler, targets, [*own_options, *options])
        found = [os.path.join(at, file) for at, _, files in os.walk(build_folder) for file in files]
        pattern = re.compile(archives.replace("*", ".*"))
        for path in found:
            if pattern.fullmatch(os.path.basename(path)):
                shutil.copy(path, library)
        shutil.rmtree(build_folder)
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(made_of)


main()
