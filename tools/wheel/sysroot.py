#!/usr/bin/env python3
"""Makes what the wheel for another machine is compiled against: sysroot.py <folder> <machine> <package>...

Debian's packages for that machine (aarch64), with all that they depend on, are unpacked in <folder>/root, from where this
machine has its own. They are not installed. <folder>/toolchain.cmake tells CMake of them, and <folder>/sources.txt names
the sources that the packages were made from. All of it is made again only when the packages of this machine change, as
the code that its protoc writes needs the same Protobuf there."""

import glob
import os
import re
import shutil
import subprocess
import sys

import debian

ARCHITECTURES = {"aarch64": "arm64"}
LEFT_OUT = ["./bin", "./sbin", "./etc", "./var", "./usr/sbin", "./usr/share/doc", "./usr/share/man", "./usr/share/locale"]
TOOLCHAIN = """# Written by tools/wheel/sysroot.py.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})
set(CMAKE_C_COMPILER {machine}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER {machine}-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE {machine}-linux-gnu)
set(CMAKE_SYSROOT {root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{{PKG_CONFIG_SYSROOT_DIR}} {root})
set(ENV{{PKG_CONFIG_LIBDIR}} {root}/usr/lib/{machine}-linux-gnu/pkgconfig:{root}/usr/share/pkgconfig)
"""


def unpack(package, root):
    """Follows links to folders, as /lib is one."""
    command = ["tar", "-x", "-C", root, "--keep-directory-symlink", *[f"--exclude={path}" for path in LEFT_OUT]]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as archive:
        subprocess.run(command, stdin=archive.stdout, check=True)
    if archive.returncode != 0:
        debian.fail(f"dpkg-deb cannot unpack {package}")


def turn_links(root):
    """Absolute links lead into the root instead of this machine's folders."""
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.islink(path) and os.readlink(path).startswith("/"):
                target = os.path.relpath(root + os.readlink(path), os.path.realpath(folder))
                os.unlink(path)
                os.symlink(target, path)


def link_from_here(root):
    """Links what is this machine's: the plug-ins of protoc, which gRPC's configuration for CMake wants beside its libraries,
    and CUDA's folder, whose headers and kernels are the same for all machines."""
    for path in [*glob.glob("/usr/bin/grpc_*_plugin"), *glob.glob("/usr/local/cuda")]:
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        os.symlink(path, root + path)


def source_of(package):
    """'<package> <source> <version of the source>' of the file of a package."""
    shown = subprocess.run(["dpkg-deb", "-W", "--showformat=${Package} ${source:Package} ${source:Version}", package], check=True,
                           capture_output=True, text=True).stdout
    if re.fullmatch(r"\S+ \S+ \S+", shown) is None:
        debian.fail(f"dpkg-deb says of {package}: {shown}")
    return shown


def main():
    asked = sys.argv[1:2] in (["-h"], ["--help"])
    if asked or len(sys.argv) < 4:
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    folder, machine, *names = os.path.abspath(sys.argv[1]), *sys.argv[2:]
    if machine not in ARCHITECTURES:
        debian.fail(f"there are no packages for {machine}: {', '.join(ARCHITECTURES)}")
    made_of = "\n".join(f"{name} {debian.source_of(name)}" for name in names)
    stamp = os.path.join(folder, "made_of.txt")
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == made_of:
        return
    print(f"    unpacking packages for {machine}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    root = os.path.join(folder, "root")
    os.makedirs(os.path.join(root, "usr/lib"))
    os.symlink("usr/lib", os.path.join(root, "lib"))
    try:
        packages = debian.Archive(folder, ARCHITECTURES[machine]).packages(names)
    except OSError as error:
        debian.fail(f"{error}It needs the network, and a package source that has packages for {ARCHITECTURES[machine]}.")
    for package in packages:
        unpack(package, root)
    turn_links(root)
    link_from_here(root)
    with open(os.path.join(folder, "sources.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{source_of(package)}\n" for package in packages)
    with open(os.path.join(folder, "toolchain.cmake"), "w", encoding="utf-8") as file:
        file.write(TOOLCHAIN.format(machine=machine, root=root))
    shutil.rmtree(os.path.join(folder, "apt"))
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(made_of)


if __name__ == "__main__":
    main()
