#!/usr/bin/env python3
"""python_safetensors_test.py <dlaunch> <safetensors_export>: Python's safetensors reads what ExportSafetensors wrote, and
the ranks' files of a checkpoint: names, types, sizes and every byte. Skipped (77) where there is no such module."""

import os
import subprocess
import sys
import tempfile

try:
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print(f"skipped: reading with Python's safetensors: {error}; `pip install safetensors numpy` for {sys.executable}")
    sys.exit(77)

# As in safetensors_export.cc.
TENSORS = {
    "numpy.a_bool": ("BOOL", "bool", [5]),
    "numpy.bytes": ("U8", "uint8", [7]),
    "numpy.chars": ("I8", "int8", [3, 3]),
    "numpy.doubles": ("F64", "float64", [4, 3, 2]),
    "numpy.empty": ("F32", "float32", [0, 4]),
    "numpy.floats": ("F32", "float32", [31, 17]),
    "numpy.halves": ("F16", "float16", [2, 9]),
    "numpy.ints": ("I32", "int32", [11]),
    "numpy.longs": ("I64", "int64", [6]),
    "numpy.scalar": ("F32", "float32", []),
    "numpy.shorts": ("I16", "int16", [1, 8]),
    "small.bfloats": ("BF16", None, [3, 5]),
}
PREFIX = "numpy."


def read(path):
    with open(path, "rb") as file:
        return file.read()


def differences(folder, ranks):
    """The differences that Python sees, as lines."""
    written = {name: read(os.path.join(folder, name + ".bin")) for name in TENSORS}
    found = []
    flat = dict(safetensors.deserialize(read(os.path.join(folder, "all.safetensors"))))
    if flat.keys() != TENSORS.keys():
        found.append(f"all.safetensors has {sorted(flat)}")
    for name, view in flat.items():
        kind, _, shape = TENSORS[name]
        if (view["dtype"], list(view["shape"]), bytes(view["data"])) != (kind, shape, written[name]):
            found.append(f"{name} is {view['dtype']} {view['shape']}, or has other bytes")

    arrays = safetensors.numpy.load_file(os.path.join(folder, "numpy.safetensors"))
    expected = {name for name in TENSORS if name.startswith(PREFIX)}
    if {PREFIX + name for name in arrays} != expected:
        found.append(f"numpy.safetensors has {sorted(arrays)}")
    for name, array in arrays.items():
        _, kind, shape = TENSORS[PREFIX + name]
        if (array.dtype.name, list(array.shape), array.tobytes()) != (kind, shape, written[PREFIX + name]):
            found.append(f"{name} is {array.dtype} {array.shape}, or has other bytes")

    # From the ranks' files, pieces "name[0:2,0:9]", which are cut along one dimension, in order make the whole.
    pieces = {name: {} for name in TENSORS}
    for rank in range(ranks):
        path = os.path.join(folder, "checkpoint", f"rank-{rank:05}-of-{ranks:05}.safetensors")
        for key, view in safetensors.deserialize(read(path)):
            name, _, span = key.partition("[")
            begins = tuple(int(part.partition(":")[0]) for part in span.rstrip("]").split(",") if part)
            pieces[name][begins] = bytes(view["data"])
    for name, parts in pieces.items():
        if b"".join(parts[begin] for begin in sorted(parts)) != written[name]:
            found.append(f"the pieces of {name} are not what was written")
    return found


def main(dlaunch, export):
    failed = False
    for ranks in (1, 3):
        with tempfile.TemporaryDirectory(prefix="cohort-safetensors-") as folder:
            subprocess.run([dlaunch, "--nproc-per-node", str(ranks), "--", export, folder], check=True, timeout=100)
            found = differences(folder, ranks)
        print(f"{ranks} ranks, safetensors {safetensors.__version__}: {len(TENSORS)} tensors, "
              f"{'; '.join(found) or 'all alike'}", flush=True)
        failed = failed or bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
