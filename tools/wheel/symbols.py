#!/usr/bin/env python3
"""Fails where a wheel needs what systems with an old glibc lack: symbols.py <wheel> [<glibc, 2.28 unless given>]

Looks at each ELF file: its machine, versions of symbols, libraries, symbols of no library. The limits are those of
manylinux_2_28, but that libstdc++ must not be needed at all."""

import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

ELF = b"\x7fELF"
# The machine of a tag by the number in an ELF file.
MACHINES = {62: "x86_64", 183: "aarch64"}
# Beside libc, libgcc_s for modules: see link.py.
LIBRARIES = re.compile(r"(libc\.so\.6|libm\.so\.6|libdl\.so\.2|librt\.so\.1|libpthread\.so\.0|libgcc_s\.so\.1|ld-linux-.*)")
GCC = (7, 0, 0)


def numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version))


def newest(name, glibc):
    """The newest version with this name that may be needed, or None: none may."""
    return {"GLIBC": numbers(glibc), "GCC": GCC}.get(name)


def faults(path, glibc):
    """Lines that say what is wrong with one ELF file."""
    shown = subprocess.run(["readelf", "-W", "-d", "-V", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", shown):
        if not LIBRARIES.fullmatch(library):
            yield f"needs the library {library}"
    for version in sorted(set(re.findall(r"Name: (\S+)\s+Flags:", shown))):
        name, _, number = version.partition("_")
        limit = newest(name, glibc)
        if limit is None or not re.fullmatch(r"[\d.]+", number) or numbers(number) > limit:
            using = re.findall(rf"UND (\S+)@{re.escape(version)}\s", shown)
            yield f"needs {version}, for {', '.join(using[:5]) or 'the loader'}"
    undefined = re.findall(r"GLOBAL\s+\S+\s+UND\s+(\S+)", shown)
    for symbol in undefined:
        if "@" not in symbol and not re.match(r"_?Py", symbol):
            yield f"needs {symbol} of an unknown library"
    if not any(symbol.startswith("memcpy@") for symbol in undefined):
        yield "has a memcpy of its own, which is slower than glibc's"


def check(wheel, glibc):
    """Lines that say what is wrong with a wheel."""
    tag = re.search(r"manylinux_(\d+_\d+)_(\w+)\.whl$", wheel)
    if tag is None or numbers(tag[1]) > numbers(glibc):
        yield f"{os.path.basename(wheel)}: its tag says another glibc than {glibc}"
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        files = [name for name in archive.namelist() if archive.read(name)[:4] == ELF]
        if not files:
            yield f"{os.path.basename(wheel)}: has no ELF file"
        for name in files:
            (number,) = struct.unpack_from("<H", archive.read(name), 18)
            if tag is not None and MACHINES.get(number) != tag[2]:
                yield f"{name}: is built for {MACHINES.get(number, 'another machine')}, and the tag says {tag[2]}"
            path = archive.extract(name, folder)
            yield from (f"{name}: {fault}" for fault in faults(path, glibc))


def main():
    asked = sys.argv[1:2] in (["-h"], ["--help"])
    if asked or len(sys.argv) < 2:
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    wheel, glibc = sys.argv[1], (sys.argv[2:] or ["2.28"])[0]
    found = list(check(wheel, glibc))
    if found:
        sys.exit("\n".join(found))
    print(f"{os.path.basename(wheel)}: every ELF file runs with glibc {glibc}")


if __name__ == "__main__":
    main()
