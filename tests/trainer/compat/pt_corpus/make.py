#!/usr/bin/env python3
"""Writes the files of this folder, and what Python's own torch.load reads of them.

    /usr/bin/python3 make.py     # with PyTorch 1.13: the files v1_*, expected_1.txt
    python3 make.py              # with PyTorch 2: the files v2_* and other_*, expected_2.txt

Lines of a listing have fields with tabs between them: `file NAME`, then `tensor NAME DESCRIPTION` for each tensor, `left
NAME` for values that are none, `refused TEXT` for files that can't be read, `needs TYPE` for those with a type that not
every libtorch has."""

import argparse
import collections
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gzip
import io
import json
import os
import pathlib
import pickle
import random
import re
import tarfile
import types
import uuid
import zipfile
import zlib

import numpy
import torch
from torch import nn

FOLDER = os.path.dirname(os.path.abspath(__file__))
NEW = int(torch.__version__.split(".")[0]) >= 2
# As libtorch prints the types.
TYPES = {"float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
         "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex32": "ComplexHalf",
         "complex64": "ComplexFloat", "complex128": "ComplexDouble", "uint16": "UInt16", "uint32": "UInt32",
         "uint64": "UInt64"}


# Classes that a program may have.
class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    width: int = 3
    scale: object = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: str
    values: object


class Slots:
    __slots__ = ("a", "b")


class Reduced:
    def __init__(self, tensor, factor):
        self.tensor, self.factor = tensor, factor

    def __reduce__(self):
        return Reduced, (self.tensor, self.factor)


class WithState:
    def __init__(self):
        self.weight = torch.arange(3.0)

    def __getstate__(self):
        return {"weight": self.weight, "note": "x"}

    def __setstate__(self, state):
        self.weight = state["weight"]


class Executing:
    def __reduce__(self):
        return print, ("a pickle was executed",)


class DictOfMine(dict):
    pass


class Registered:
    pass


copyreg.pickle(Registered, lambda value: (Registered, ()))
Pair = collections.namedtuple("Pair", "left right")


class TensorOfMine(torch.Tensor):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.blocks = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU())])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(1))])
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.plain = torch.full((2,), 7.0)
        self.parent = [self]  # a circle


class Beside(nn.Module):
    """A module that holds tensors beside its state_dict()."""
    LEFT = ("plain", "table.a", "table.deep.0", "table.deep.1.weight", "unregistered.0.weight", "unregistered.0.bias",
            "up.own.x", "config.scale")

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(2, 2)
        self.up.own = {"x": torch.ones(1)}
        self.plain = torch.full((2,), 7.0)
        self.table = {"a": torch.ones(3), "deep": [torch.zeros(2), nn.Linear(1, 1, bias=False)], "name": "x"}
        self.unregistered = [nn.Linear(1, 1)]
        self.config = Config(scale=torch.ones(1))
        self.same = {"up": self.up.weight, "modules": [self.up], "root": [self]}  # nothing new


def numbers(*shape):
    count = 1
    for size in shape:
        count *= size
    return torch.arange(float(count)).reshape(shape) - 2.5


def checkpoint():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
            "epoch": 3, "best": numpy.float64(1.5), "loss": numpy.float32(0.5), "args": argparse.Namespace(lr=0.1, fp16=True),
            "history": [0.5, 0.25], "rng": torch.get_rng_state()[:16].clone(), "python_rng": random.getstate()[:1],
            "numpy_rng": numpy.random.RandomState(1).get_state()[:1], "git": None, "name": "größe"}


def circle():
    outer = {"a": numbers(2)}
    outer["self"] = outer
    items = [numbers(3), outer]
    items.append(items)
    outer["items"] = items
    return outer


def views():
    whole = numbers(4, 6)
    return {"whole": whole, "rows": whole[1:3], "turned": whole.t(), "steps": whole[::2, 1::3], "expanded": numbers(1, 3).expand(4, 3),
            "scalar": torch.tensor(3.5), "none": torch.zeros(0, 3), "element": whole[2, 3], "diagonal": whole.diagonal(),
            "empty_view": whole[4:], "windows": torch.arange(6).unfold(0, 3, 1), "channels_last":
            numbers(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), "flat": whole.view(-1)[5:7]}


def all_types():
    return {str(t).split(".")[1]: torch.tensor([0, 1, 3]).to(t) for t in
            (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
             torch.uint8, torch.bool, torch.complex64, torch.complex128)}


def attributes(net):
    net.up.weight.tag = "x"
    return net


# name: what is saved, or (that, options of torch.save).
def objects():
    torch.manual_seed(1)
    sparse = torch.sparse_coo_tensor([[0, 2], [1, 0]], [3.0, 4.0], (3, 2))
    repeated = torch.sparse_coo_tensor([[0, 0], [1, 1]], [3.0, 4.0], (3, 2))
    old = {"_use_new_zipfile_serialization": False}
    net = Net()
    made = {
        "state_dict": net.state_dict(), "checkpoint": checkpoint(), "module": nn.Linear(2, 3), "net": net,
        "data_parallel": nn.DataParallel(nn.Linear(2, 2)), "module_in_dict": {"model": nn.Linear(2, 2), "epoch": 1},
        "lone": numbers(2, 2), "list": [numbers(2), numbers(3), (numbers(1), 5)], "empty": {}, "number": 7,
        "optimizer": torch.optim.SGD([nn.Parameter(numbers(2))], lr=0.1, momentum=0.9), "circle": circle(),
        "scalars": {"w": numbers(2), "f": numpy.float64(1.5), "i": numpy.int32(3), "b": numpy.bool_(True), "s": numpy.str_("x")},
        "arrays": {"w": numbers(2), "a": numpy.arange(3.0), "o": numpy.array([1, "x"], dtype=object),
                   "r": numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), "t": numpy.datetime64("2020-01-01")},
        "namespaces": {"w": numbers(2), "args": argparse.Namespace(a=1, b=[2]), "simple": types.SimpleNamespace(x=1)},
        "namespace_with_tensor": {"args": argparse.Namespace(a=1, t=numbers(3)), "simple": types.SimpleNamespace(t=numbers(2))},
        "dataclass": {"config": Config(scale=numbers(2)), "plain": Config(), "frozen": Frozen("x", [numbers(1)])},
        "library": {"w": numbers(2), "date": datetime.datetime(2020, 1, 2), "path": pathlib.PurePosixPath("/a/b"), "call":
                    functools.partial(int, base=2), "pattern": re.compile("a+"), "uuid": uuid.UUID(int=5), "decimal":
                    decimal.Decimal("1.5"), "fraction": fractions.Fraction(1, 3), "complex": 1 + 2j, "range": range(3), "slice":
                    slice(1, 2), "color": Color.RED, "type": int, "function": len, "ellipsis": ..., "zone": datetime.timezone.utc},
        "containers": {"ordered": collections.OrderedDict([("b", numbers(1)), ("a", numbers(2))]), "default":
                       collections.defaultdict(list, {"x": [numbers(2)]}), "counter": collections.Counter("aab"), "queue":
                       collections.deque([numbers(1), numbers(2)], maxlen=5), "mine": DictOfMine(k=numbers(2)), "pair": Pair(numbers(1), 2),
                       "set": {1, 2}, "frozen": frozenset({3}), "bytes": b"\0\xff", "array": bytearray(b"ab"), "long": 2**200,
                       "negative": -2**70, "chained": collections.ChainMap({"c": 1})},
        "custom": {"w": numbers(2), "reduced": Reduced(1, 2), "registered": Registered(), "print": Executing()},
        "reduced_tensor": {"x": Reduced(numbers(2), 3)}, "with_state": {"x": WithState()},
        "torch_values": {"w": numbers(2), "size": torch.Size([2, 3]), "device": torch.device("cpu"), "dtype": torch.float16, "layout": torch.strided
},
        "storages": {"w": numbers(2), "s": numbers(3).storage()},
        "packed": nn.utils.rnn.pack_padded_sequence(numbers(2, 3, 1), [2, 1, 1][:3], enforce_sorted=False),
        "views": views(), "types": all_types(), "parameter": {"p": nn.Parameter(numbers(2)), "frozen": nn.Parameter(numbers(2), requires_grad=False)},
        "tied": (lambda w: {"a": w, "b": w, "c": w[1:]})(numbers(3)),
        "tuple_keys": {(0, 1): numbers(1), (0, 2): numbers(2), ("a", None): numbers(3), (1,): numbers(4)},
        "odd_keys": {None: numbers(1), True: numbers(2), 2: numbers(3), -1.5: numbers(4), b"b": numbers(5), 1e20: numbers(6), 0.0: numbers(7)},
        "int_keys": {key: numbers(i + 1) for i, key in enumerate((0, 1, 300, 70000, -5, 2**40))}, "dotted": {"a.b": numbers(1), "a": {"c": numbers(2)}},
        "empty_keys": {"": numbers(1), "a": {"": numbers(2)}}, "deep": functools.reduce(lambda inner, i: {str(i): [inner]}, range(40), numbers(2)),
        "nested": {"a": [{"b": (numbers(1), {"c": numbers(2)})}, []], "x": {}}, "coo": {"s": sparse.coalesce(), "r": repeated},
        "csr": {"s": sparse.to_dense().to_sparse_csr()}, "meta": {"m": torch.empty(2, 3, device="meta"), "w": numbers(1)},
        "old_state_dict": (net.state_dict(), old), "old_checkpoint": (checkpoint(), old), "old_views": (views(), old), "old_types": (all_types(), old),
        "old_coo": ({"s": sparse.coalesce()}, old), "old_lone": (numbers(2), old), "old_empty": ({}, old),
        "old_protocol_4": ({"w": numbers(2), "args": argparse.Namespace(a=1)}, dict(old, pickle_protocol=4)),
        "large": {"w": torch.zeros(1).expand(10, 20), "text": "x" * 3000, "many": list(range(700))},
    }
    for protocol in range(1, 6):
        made[f"protocol_{protocol}"] = (dict(checkpoint(), containers=[{1, 2}, b"x" * 300, 2**70, "y" * 300, Pair(numbers(1), 2)]), {"pickle_protocol": protocol})
    if not NEW:
        made["old_module"] = (nn.Linear(2, 3), old)  # PyTorch 2 writes where its own files lie
        return made
    x = torch.tensor([1 + 2j, 3 - 4j])
    tagged = nn.Parameter(numbers(2))
    tagged.tensor_parallel = True
    holder = nn.Parameter(numbers(3))
    holder.scale = numbers(1)
    both = x.conj().imag
    made.update({
        "conj": {"c": x.conj(), "same": x, "part": x.conj()[1:], "matrix": torch.stack([x, x * 2]).mH}, "neg": {"n": both, "real": x.conj().real, "view": torch._neg_view(x.clone()), "f": torch._neg_view(numbers(3))},
        "conj_neg": {"x": torch._neg_view(x.conj()), "d": x.to(torch.complex128).conj()},
        "subclass": {"t": numbers(2).as_subclass(TensorOfMine)}, "attribute": {"p": tagged}, "attribute_tensor": {"p": holder}, "buffer": {"b": nn.Buffer(numbers(2))},
        "compressed": {"csc": sparse.to_dense().to_sparse_csc(), "bsr": numbers(4, 4).to_sparse_bsr((2, 2)), "bsc": numbers(4, 4).to_sparse_bsc((2, 2))},
        "untyped_storage": {"w": numbers(2), "s": numbers(3).untyped_storage()}, "generator": {"w": numbers(2), "g": torch.Generator()},
        "conj_old": ({"c": x.conj()}, old),
        "parametrized": torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)).state_dict(),
    })
    return made


def newer_types():
    for name in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "complex32"):
        yield name, {"t": torch.tensor([[1, 2, 4], [8, 16, 32]]).to(getattr(torch, name))[:, 1:]}


def refused():
    """name: (what is saved, a part of the error)."""
    made = {
        "meeting_numbers": ({1: numbers(1), "1": numbers(2)}, "obj[1] and obj['1'] would both have the name \"1\""),
        "meeting_dots": ({"a.b": numbers(1), "a": {"b": numbers(2)}}, "obj['a.b'] and obj['a']['b'] would both have the name \"a.b\""),
        "meeting_none": ({"m": {None: numbers(1), "None": numbers(2)}}, "obj['m'][None] and obj['m']['None']"),
        "meeting_list": ({"l": [numbers(1)], "l.0": numbers(2)}, "the name \"l.0\""),
        "quantized": ({"w": numbers(2), "q": torch.quantize_per_tensor(numbers(3), 0.1, 0, torch.qint8)}, "obj['q']: it is a quantized tensor"),
        "quantized_channels": ({"q": torch.quantize_per_channel(numbers(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint8)}, "quantized tensor"),
    }
    if NEW:
        from torch.distributed.tensor import DeviceMesh, distribute_tensor, Replicate
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        made["dtensor"] = ({"d": distribute_tensor(numbers(2), DeviceMesh("cpu", [0]), [Replicate()])}, "DTensor")
        made["nested_tensor"] = ({"n": torch.nested.nested_tensor([numbers(1), numbers(2)])}, "nested tensor")
        made["jagged"] = ({"n": torch.nested.nested_tensor([numbers(1), numbers(2)], layout=torch.jagged)}, "nested tensor")
    return made


def other_files():
    """name: (bytes, a part of the error)."""
    def archive(entries, compression=zipfile.ZIP_STORED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as written:
            for name, data in entries.items():
                written.writestr(zipfile.ZipInfo(name), data, compression)
        return buffer.getvalue()

    def saved(save):
        buffer = io.BytesIO()
        save(buffer)
        return buffer.getvalue()

    plain = saved(lambda buffer: torch.save({"w": numbers(2)}, buffer))
    entries = {name: zipfile.ZipFile(io.BytesIO(plain)).read(name) for name in zipfile.ZipFile(io.BytesIO(plain)).namelist()}
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:") as written:
        written.addfile(tarfile.TarInfo("storages"))
    return {
        "compressed.zip": (archive(entries, zipfile.ZIP_DEFLATED), "compressed"), "torchscript": (saved(lambda b: torch.jit.save(torch.jit.script(nn.Linear(2, 2)), b)), "TorchScript"),
        "npz": (saved(lambda b: numpy.savez(b, a=numpy.ones(2))), ".npz"), "npy": (saved(lambda b: numpy.save(b, numpy.ones(2))), ".npy"),
        "zip": (archive({"a.txt": b"x"}), "has no data.pkl, but a.txt"), "pickle": (pickle.dumps({"w": numbers(2)}), "torch.save did not write"),
        "gzip": (gzip.compress(plain), "gzip"), "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs"),
        "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML"), "json": (b'{"weight_map": {}}', "JSON"), "text": (b"Not found\n", "Not found"),
        "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"), "nothing": (b"", "it is empty"), "zeros": (bytes(2000), "zeros"),
        "safetensors": (len(header).to_bytes(8, "little") + header + bytes(4), "safetensors"), "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(20), "HDF5"),
        "onnx": (b"\x08\x07\x12\x07pytorch" + bytes(20), "ONNX"), "gguf": (b"GGUF" + bytes(20), "GGUF"), "cut": (plain[:-100], "broke off"), "noise": (bytes(range(128, 256)), "pickle"),
        "tar": (tar.getvalue(), "tar archive"),
        "old_cut": (saved(lambda b: torch.save({"w": numbers(9)}, b, _use_new_zipfile_serialization=False))[:-10], "ends within storage"),
    }


def key_text(key):
    return key if isinstance(key, str) else repr(key)


def found(value, name="", depth=0, around=()):
    """All tensors in a value, by name."""
    def within(key):
        return key_text(key) if depth == 0 else f"{name}.{key_text(key)}"

    if id(value) in around:
        return {}
    around = around + (id(value),)
    if isinstance(value, torch.Tensor):
        pairs, own = vars(value).items() if vars(value) else (), {name: value}
    elif isinstance(value, nn.Module):
        return {within(key): tensor for key, tensor in value.state_dict(keep_vars=True).items()}
    elif isinstance(value, dict):
        pairs, own = list(value.items()) + list(getattr(value, "__dict__", {}).items()), {}
    elif isinstance(value, (list, tuple, collections.deque)):
        pairs, own = enumerate(value), {}
    elif isinstance(value, Reduced):
        pairs, own = enumerate((value.tensor, value.factor)), {}
    elif isinstance(value, torch.optim.Optimizer):
        pairs, own = value.__getstate__().items(), {}
    elif isinstance(value, torch.Generator):
        pairs, own = {"state": {2: value.get_state()}}.items(), {}
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        pairs, own = vars(value).items(), {}
    else:
        return {}
    for key, inner in pairs:
        own.update(found(inner, within(key), depth + 1, around))
    return own


def described(tensor):
    name = str(tensor.dtype).split(".")[1]
    sizes = "[" + ", ".join(map(str, tensor.shape)) + "]"
    kind = TYPES.get(name, name[0].upper() + name[1:])
    if tensor.is_meta:
        return f"{kind} {sizes} meta"
    layout = {torch.strided: "", torch.sparse_coo: "Sparse "}.get(tensor.layout)
    if layout is None:
        layout = {"sparse_csr": "SparseCsr ", "sparse_csc": "SparseCsc ", "sparse_bsr": "SparseBsr ", "sparse_bsc": "SparseBsc "}[str(tensor.layout).split(".")[1]]
    dense = tensor.detach()
    dense = (dense.to_dense() if layout else dense).resolve_conj().resolve_neg().contiguous().as_subclass(torch.Tensor)
    data = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return f"{kind} {sizes} {layout}{zlib.crc32(data):x}"


def listed(path, file, lines):
    options = {"weights_only": False} if NEW else {}
    value = torch.load(path, **options)
    lines.append(f"file\t{file}")
    for name, tensor in sorted(found(value).items()):
        lines.append(f"tensor\t{name}\t{described(tensor)}")
    for name in value.LEFT if isinstance(value, Beside) else ():
        lines.append(f"left\t{name}")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not found(inner, around=(id(value),)) and inner is not value:
                lines.append(f"left\t{key_text(key)}")


def big_endian(path, target):
    """The file as a machine with the other byte order writes it."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as written:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("/byteorder"):
                data = b"big"
            if "/data/" in name:
                data = numpy.frombuffer(data, dtype="<f4").astype(">f4").tobytes()
            written.writestr(zipfile.ZipInfo(name), data)


def main():
    prefix, lines = ("v2_" if NEW else "v1_"), []
    place = lambda file: os.path.join(FOLDER, file)
    for name, value in {**objects(), "beside": Beside()}.items():
        file = f"{prefix}{name}.pt"
        value, options = value if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict) else (value, {})
        torch.save(value, place(file), **options)
        listed(place(file), file, lines)
    for name, (value, error) in refused().items():
        file = f"{prefix}{name}.pt"
        torch.save(value, place(file))
        lines += [f"file\t{file}", f"refused\t{error}"]
    if NEW:
        for name, value in newer_types():
            file = f"v2_{name}.pt"
            torch.save(value, place(file))
            listed(place(file), file, lines)
            lines.append("needs\t" + TYPES.get(name, name[0].upper() + name[1:]))
        torch.save({"w": numbers(2, 3), "turned": numbers(3, 2).t(), "c": torch.tensor([1 + 2j, 3j])}, place("v2_big_endian.pt"))
        os.replace(place("v2_big_endian.pt"), place("little.pt"))
        big_endian(place("little.pt"), place("v2_big_endian.pt"))
        os.remove(place("little.pt"))
        listed(place("v2_big_endian.pt"), "v2_big_endian.pt", lines)
        torch.serialization.set_crc32_options(False)
        torch.save({"w": numbers(2)}, place("v2_without_checksums.pt"))
        torch.serialization.set_crc32_options(True)
        listed(place("v2_without_checksums.pt"), "v2_without_checksums.pt", lines)
        for name, (data, error) in other_files().items():
            with open(place(f"other_{name}"), "wb") as written:
                written.write(data)
            lines += [f"file\tother_{name}", f"refused\t{error}"]
    with open(place(f"expected_{prefix[1]}.txt"), "w", encoding="utf-8") as written:
        written.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
