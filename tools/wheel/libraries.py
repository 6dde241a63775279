#!/usr/bin/env python3
"""Builds the archives that the wheel links and Debian has not: libraries.py <folder> [--sysroot <folder>] [<compiler> <CMake option>...]

Debian's archives of Abseil and Protobuf are not position-independent, so a Python module cannot hold them; prometheus-cpp
and civetweb have none. They are built from Debian's own sources of the installed versions into <folder>/lib, and again
only when a version or the compiler changes. --sysroot: for another machine, against what sysroot.py left there."""

import os
import re
import shutil
import subprocess
import sys

import debian

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


def source_of(package, sysroot):
    """Name and version of the source of a package: the one in the sysroot, or the one that is installed here."""
    if sysroot is not None:
        with open(os.path.join(sysroot, "sources.txt"), encoding="utf-8") as file:
            return dict(line.split(maxsplit=1) for line in file)[package].split()
    found = debian.source_of(package)
    if found is None:
        debian.fail(f"{package} is not installed; tools/dev setup installs it")
    return found


def fetch(archive, name, version):
    try:
        return archive.source(name, version)
    except OSError as error:
        debian.fail(f"{error}The source {name} {version} needs the network, dpkg-dev and a package source that has this version: "
                    f"apt-get update && apt-get install dpkg-dev, and upgrade the package that {name} is the source of.")


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
    if not (debian.run(configure, log) and debian.run(["cmake", "--build", folder, "-j", jobs, "--target", *targets], log)):
        debian.fail(f"the build of {source} failed; {log} has all of its output, which ends with\n{debian.last_lines(log, 20)}")


def main():
    asked = sys.argv[1:2] in (["-h"], ["--help"])
    if asked or len(sys.argv) < 2:
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    folder, *rest = sys.argv[1:]
    sysroot = None
    if rest[:1] == ["--sysroot"]:
        sysroot, rest = os.path.abspath(rest[1]), rest[2:]
    compiler, *options = rest or ["c++"]
    if sysroot is not None:
        options.append(f"-DCMAKE_TOOLCHAIN_FILE={sysroot}/toolchain.cmake")
    folder = os.path.abspath(folder)
    library = os.path.join(folder, "lib")
    os.makedirs(library, exist_ok=True)
    about = subprocess.run([compiler, "-v"], capture_output=True, text=True, check=True).stderr.splitlines()[-1]
    machine = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    sources = debian.Archive(folder)
    for package, (targets, archives, own_options) in PACKAGES.items():
        name, version = source_of(package, sysroot)
        made_of = f"{version} {about} {machine} {own_options} {options}\n"
        stamp = os.path.join(library, f"{name}.txt")
        if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == made_of:
            continue
        print(f"    building {name} {version}", flush=True)
        build_folder = os.path.join(folder, "build", name)
        build(fetch(sources, name, version), build_folder, compiler, targets, [*own_options, *options])
        found = [os.path.join(at, file) for at, _, files in os.walk(build_folder) for file in files]
        pattern = re.compile(archives.replace("*", ".*"))
        for path in found:
            if pattern.fullmatch(os.path.basename(path)):
                shutil.copy(path, library)
        shutil.rmtree(build_folder)
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(made_of)


if __name__ == "__main__":
    main()
