#!/usr/bin/env python3
"""Finds built programs and libraries that the dynamic loader would refuse: those whose GNU_RELRO part, which it makes
read-only after relocation, begins or ends on a page that no segment maps (mold 1.10, see CohortCompiler.cmake).

    segments.py FOLDER...
"""
import pathlib
import struct
import sys

PAGE = 4096
LOAD, RELRO = 1, 0x6474E552


def program_headers(image):
    """(type, address, bytes in memory) of each program header of a 64-bit little-endian ELF image."""
    offset, = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for i in range(count):
        kind, _, _, address, _, _, memory, _ = struct.unpack_from("<IIQQQQQQ", image, offset + i * size)
        yield kind, address, memory


def fault(headers):
    """Why the loader would refuse an image with these headers; None if it would not."""
    loads = [(a // PAGE * PAGE, -(-(a + n) // PAGE) * PAGE) for kind, a, n in headers if kind == LOAD]
    for kind, address, size in headers:
        if kind != RELRO:
            continue
        for page in range(address // PAGE * PAGE, (address + size) // PAGE * PAGE, PAGE):
            if not any(begin <= page < end for begin, end in loads):
                return f"GNU_RELRO covers the page at {page:#x}, which no segment maps"
    return None


def main(folders):
    seen, faults = 0, []
    for folder in folders:
        for path in sorted(pathlib.Path(folder).iterdir()):
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                image = file.read(PAGE)  # the headers lie at its beginning
            if image[:6] != b"\x7fELF\x02\x01" or image[16] not in (2, 3):
                continue
            seen += 1
            why = fault(list(program_headers(image)))
            if why:
                faults.append(f"{path}: {why}")
    print("\n".join(faults + [f"{seen} programs and libraries, {len(faults)} of which would not start"]))
    return 1 if faults or not seen else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
