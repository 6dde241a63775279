#!/usr/bin/env python3
"""real_nccl_test.py DLAUNCH BLACKBOX: NCCL's own code opens the plug-in and passes events on to it.

A machine without a GPU has no communicators. But the functions by which NCCL loads a plug-in, and makes the events of its
own version into those of an older one, need no GPU. They are not exported; `nm` finds them in a library that has its
symbols. Skipped where there is none, or where it is older than 2.28, whose own events are those of version 5."""
import ctypes
import glob
import json
import os
import subprocess
import sys

PLACES = ("/usr/local/cuda*/lib*/libnccl.so.2", "/usr/lib/*/libnccl.so.2", "/usr/lib*/libnccl.so.2", "/usr/local/lib/libnccl.so.2")
VERSIONS = (5, 4, 3)
COLLECTIVE, MESSAGE, KERNEL = 1 << 1, 1 << 2, 1 << 6
SUCCESS = 0


class Collective(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint64), ("function", ctypes.c_char_p), ("send", ctypes.c_void_p),
                ("receive", ctypes.c_void_p), ("count", ctypes.c_size_t), ("root", ctypes.c_int),
                ("datatype", ctypes.c_char_p), ("channels", ctypes.c_uint8), ("warps", ctypes.c_uint8),
                ("algorithm", ctypes.c_char_p), ("protocol", ctypes.c_char_p), ("group", ctypes.c_void_p)]


class Message(ctypes.Structure):
    _fields_ = [("function", ctypes.c_char_p), ("buffer", ctypes.c_void_p), ("datatype", ctypes.c_char_p),
                ("count", ctypes.c_size_t), ("peer", ctypes.c_int), ("channels", ctypes.c_uint8), ("group", ctypes.c_void_p)]


class Kernel(ctypes.Structure):
    _fields_ = [("channel", ctypes.c_uint8), ("time", ctypes.c_uint64)]


class Event(ctypes.Union):
    _fields_ = [("collective", Collective), ("message", Message), ("kernel", Kernel)]


class Descriptor(ctypes.Structure):  # of NCCL's version 5
    _fields_ = [("type", ctypes.c_uint64), ("parent", ctypes.c_void_p), ("rank", ctypes.c_int), ("event", Event),
                ("rest", ctypes.c_char * 64)]


INIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.POINTER(ctypes.c_int),
                        ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Descriptor))
STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
RECORD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class Profiler(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("init", INIT), ("start", START), ("stop", STOP), ("record", RECORD),
                ("finalize", STOP)]


class Nccl:
    """The library, with what it does not export."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        names = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=False).stdout
        defined = (line.split(" ", 2) for line in names.splitlines() if line[:1] != " ")
        self.places = {name: int(place, 16) for place, kind, name in defined if kind in "tTW"}
        exported = ctypes.cast(self.library.ncclGetVersion, ctypes.c_void_p).value
        self.base = exported - self.places.get("ncclGetVersion", exported)

    def version(self):
        version = ctypes.c_int()
        self.library.ncclGetVersion(ctypes.byref(version))
        return version.value

    def function(self, name, *arguments):
        return ctypes.CFUNCTYPE(ctypes.c_void_p, *arguments)(self.base + self.places[name])

    def usable(self):
        needed = ["ncclGetVersion", "ncclOpenProfilerPluginLib(char const*)", *(f"getNcclProfiler_v{n}(void*)" for n in (3, 4, 5))]
        return all(name in self.places for name in needed) and 22800 <= self.version() < 22900


def find():
    paths = sorted(path for place in PLACES for path in glob.glob(place))
    return next((nccl for nccl in map(Nccl, paths) if nccl.usable()), None)


def check(result, what):
    if result != SUCCESS:
        sys.exit(f"{what} answered {result}")


def start(profiler, context, **fields):
    descriptor = Descriptor(type=fields.pop("type"), parent=fields.pop("parent", None), rank=1)
    part = {COLLECTIVE: descriptor.event.collective, MESSAGE: descriptor.event.message, KERNEL: descriptor.event.kernel}[descriptor.type]
    for name, value in fields.items():
        setattr(part, name, value)
    handle = ctypes.c_void_p()
    check(profiler.start(context, ctypes.byref(handle), ctypes.byref(descriptor)), "startEvent")
    return handle


def call(profiler, context, channels, **fields):
    """A call whose kernel begins and ends on `channels` channels."""
    handle = start(profiler, context, channels=channels, **fields)
    if not handle.value:
        sys.exit(f"no handle of {fields}")
    check(profiler.stop(handle), "stopEvent")
    kernels = [start(profiler, context, type=KERNEL, parent=handle, channel=channel) for channel in range(channels)]
    for kernel in kernels:
        check(profiler.stop(kernel), "stopEvent")


def rank():
    nccl = find()
    library = nccl.function("ncclOpenProfilerPluginLib(char const*)", ctypes.c_char_p)(os.environ["NCCL_PROFILER_PLUGIN"].encode())
    if not library:
        sys.exit("NCCL does not open the plug-in")
    for version in VERSIONS:
        place = nccl.function(f"getNcclProfiler_v{version}(void*)", ctypes.c_void_p)(library)
        if not place:
            sys.exit(f"NCCL finds no version {version}")
        profiler = Profiler.from_address(place)
        context, mask = ctypes.c_void_p(), ctypes.c_int()
        check(profiler.init(ctypes.byref(context), 0xC0 + version, ctypes.byref(mask), b"name", 1, 4, 1, None), "init")
        if mask.value & 0xffff != COLLECTIVE | MESSAGE | KERNEL:
            sys.exit(f"version {version} asks for {mask.value:#x}")
        if version == 3:  # NCCL 2.28 passes no communicator on to it: nothing is recorded
            if start(profiler, context, type=COLLECTIVE, function=b"AllReduce", count=8, datatype=b"ncclInt8").value:
                sys.exit("version 3 records a call of no communicator")
            continue
        call(profiler, context, 2, type=COLLECTIVE, function=b"AllReduce", count=100 + version, datatype=b"ncclBfloat16", number=0)
        call(profiler, context, 1, type=COLLECTIVE, function=b"Broadcast", count=8, root=3, datatype=b"ncclInt8", number=0)
        call(profiler, context, 1, type=MESSAGE, function=b"Send", count=16, peer=2, datatype=b"ncclFloat32")
        check(profiler.finalize(context), "finalize")
    print(subprocess.run([sys.argv[3], "--job", os.environ["COHORT_JOB_ID"], "--last", "100", "--json"], stdout=subprocess.PIPE,
                         text=True, check=True).stdout)


def main():
    if len(sys.argv) > 4:
        return rank()
    dlaunch, blackbox = sys.argv[1:3]
    if find() is None:
        print("skipped: no NCCL 2.28 with its symbols is installed")
        sys.exit(77)
    done = subprocess.run([dlaunch, "-n", "1", "--no-prefix", sys.executable, __file__, dlaunch, "", blackbox, "rank"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 0 and "cohort:" not in done.stderr, done
    calls = [(call["kind"], call["type"], call["bytes"], call["group_size"], call["state"])
             for call in json.loads(done.stdout)["ranks"][0]["calls"]]
    expected = [record for version in VERSIONS[:2] for record in (("all_reduce", "bfloat16", 2 * (100 + version), 4, "done"),
                                                                  ("broadcast", "int8", 8, 4, "done"),
                                                                  ("send", "float32", 64, 4, "done"))]
    assert calls == expected, calls


if __name__ == "__main__":
    main()
