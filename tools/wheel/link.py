#!/usr/bin/env python3
"""Links a program or a module of the wheel for an old glibc: link.py <folder> <glibc> <compiler> <argument of the link>...

CMake calls it in front of the compiler's command. The objects are the compiler's. The linker is Zig's (`python -m ziglang`),
which knows the symbols of each glibc. Each library is linked as an archive: the one beside the shared library, or the one
that libraries.py left in <folder>/lib. Only glibc's own libraries stay shared, and libgcc_s for a module."""

import importlib.util
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# Parts of glibc, for which Zig has its own files.
GLIBC = {"-ldl", "-lm", "-lrt", "-lpthread"}
# Archives that a shared library names by itself, and its archive does not.
NEEDED = {"libprometheus-cpp-pull.a": ("libcivetweb-cpp.a", "libcivetweb.a")}
# For other linkers, or for the compiler alone.
DROPPED = re.compile(r"-fuse-ld=.*|-Wl,-z,.*|-Wl,--(push|pop)-state.*|-Wl,--as-needed|-O.*|-g\d?|-D.*|-fPI[CE]|-W[^l].*|-l?pthread|--sysroot=.*")


class Toolchain:
    """A compiler: its machine, its own archives, and where its libraries lie."""

    def __init__(self, compiler, folder, shared, sysroot=()):
        self.compiler = [compiler, *sysroot]  # the option --sysroot, where the link is for another machine
        self.archives = os.path.join(folder, "lib")
        self.shared = shared
        self.folders = []

    def ask(self, *question):
        return subprocess.run([*self.compiler, *question], capture_output=True, text=True, check=True).stdout.strip()

    def file(self, name):
        path = self.ask(f"-print-file-name={name}")
        if not os.path.isabs(path):
            sys.exit(f"link.py: {self.compiler[0]} has no {name}")
        return path

    def archive(self, library):
        """The archive of a shared library, given by its path. A module takes those of libraries.py first, whose code is
        position-independent."""
        name = re.sub(r"\.so[.\d]*$", ".a", os.path.basename(library))
        places = [os.path.join(os.path.dirname(library), name), os.path.join(self.archives, name)]
        for path in reversed(places) if self.shared else places:
            if os.path.exists(path):
                return path
        sys.exit(f"link.py: {library} has no archive: neither {' nor '.join(places)} is there. tools/wheel/libraries.py builds "
                 "those that Debian lacks")

    def named(self, name):
        """The archive of -l<name>."""
        for folder in self.folders:
            library = os.path.join(folder, f"lib{name}.so")
            if os.path.exists(library):
                return self.archive(library)
        return self.file(f"lib{name}.a")

    def runtime(self):
        """The C++ library, and the unwinder. A module shares that one with the process: where Python ends a thread, libgcc_s
        unwinds the module's frames too."""
        unwinder = "libgcc_s.so.1" if self.shared else "libgcc_eh.a"
        return [self.file(name) for name in ("libstdc++.a", unwinder, "libgcc.a")]


def translate(arguments, toolchain):
    result, needed = [], []
    toolchain.folders = [a[2:] for a in arguments if a.startswith("-L")]
    for before, argument in zip(["", *arguments], arguments):
        if before == "-o":
            result.append(argument)
        elif re.search(r"\.so[.\d]*$", argument) and not argument.startswith("-"):
            result.append(toolchain.archive(argument))
            needed += [os.path.join(toolchain.archives, name) for name in NEEDED.get(os.path.basename(result[-1]), ())]
        elif argument in GLIBC:
            result.append(argument)
        elif argument.startswith("-l") and argument != "-lpthread":
            result.append(toolchain.named(argument[2:]))
        elif not argument.startswith("-L") and not DROPPED.fullmatch(argument):
            result.append(argument)
    return [*result, *needed]


def stand_ins(toolchain, output):
    """Compiles the symbols that the old glibc lacks."""
    path = f"{output}.old_glibc.o"
    subprocess.run([*toolchain.compiler, "-x", "c", "-O2", "-fPIC", "-c", os.path.join(HERE, "old_glibc.c"), "-o", path], check=True)
    return path


def main():
    asked = sys.argv[1:2] in (["-h"], ["--help"])
    if asked or len(sys.argv) < 4:
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    folder, glibc, compiler, *arguments = sys.argv[1:]
    toolchain = Toolchain(compiler, folder, "-shared" in arguments, [a for a in arguments if a.startswith("--sysroot=")])
    output = arguments[arguments.index("-o") + 1]
    target = f"{toolchain.ask('-dumpmachine').split('-')[0]}-linux-gnu.{glibc}"
    if importlib.util.find_spec("ziglang") is None:
        sys.exit(f"link.py: {sys.executable} has no ziglang, which is the linker: pip install ziglang. tools/dev wheel does")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *([] if toolchain.shared else ["-pie"]),
               *translate(arguments, toolchain),
               stand_ins(toolchain, output), *toolchain.runtime(), "-ldl", "-lm", "-lrt", "-lpthread",
               "-Wl,--eh-frame-hdr", "-Wl,--gc-sections", "-Wl,-z,relro", "-Wl,-z,now"]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": os.path.join(folder, "zig"), "ZIG_LOCAL_CACHE_DIR": os.path.join(folder, "zig")}
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
