"""Writes safetensors_corpus/: files as other writers make them: make_safetensors_corpus.py <folder>.

safetensors_corpus_test.cc reads them. The files there are of safetensors 0.8.0 and torch 2.15. Unless it is said
otherwise, element i of a tensor is i % 5.
"""

import json
import os
import struct
import sys

import safetensors.torch
import torch

FOLDER = sys.argv[1]


def path(name):
    return os.path.join(FOLDER, name)


def values(shape, dtype):
    return (torch.arange(torch.Size(shape).numel()) % 5).view(shape).to(dtype)


def by_hand(name, header, data, padding=""):
    """A file that torch's writer would lay out in another way."""
    head = (json.dumps(header) + padding).encode()
    with open(path(name), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)


OLD = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
       torch.float32, torch.float64]
NEW = [torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]

tensors = {str(dtype).replace("torch.", ""): values((2, 3), dtype) for dtype in OLD}
tensors.update(scalar=torch.tensor(3.0), empty=torch.zeros(0, 4), empty_inside=torch.zeros(2, 0, 3))
safetensors.torch.save_file(tensors, path("types.safetensors"), metadata={"format": "pt", "note": "a \"quoted\" é"})
for dtype in NEW:
    name = str(dtype).replace("torch.", "")
    safetensors.torch.save_file({name: values((2, 3), dtype)}, path(f"new_{name}.safetensors"))
for name, bits in {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8}.items():
    by_hand(f"newest_{name}.safetensors", {name: {"dtype": name, "shape": [8], "data_offsets": [0, bits]}}, bytes(bits))
safetensors.torch.save_file({}, path("none.safetensors"))
# Data that begins at odd bytes, in an order of its own, behind a header with blanks.
by_hand("unaligned.safetensors",
        {"late": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
         "early": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}},
        bytes([0, 1, 2]) + struct.pack("<2f", 0, 1), padding=" " * 5)
by_hand("refused_twice.safetensors", {}, b"")
with open(path("refused_twice.safetensors"), "wb") as file:
    entry = '"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    head = ("{" + entry + ", " + entry + "}").encode()
    file.write(struct.pack("<Q", len(head)) + head + b"\1")
U8 = {"dtype": "U8", "shape": [2]}
by_hand("refused_overlap.safetensors", {"a": {**U8, "data_offsets": [0, 2]}, "b": {**U8, "data_offsets": [1, 3]}},
        bytes(4))
by_hand("refused_hole.safetensors", {"a": {**U8, "data_offsets": [0, 2]}, "b": {**U8, "data_offsets": [3, 5]}}, bytes(5))
by_hand("refused_tail.safetensors", {"a": {**U8, "data_offsets": [0, 2]}}, bytes(3))
# A model in two files.
shards = {"model-00001-of-00002.safetensors": {"up.weight": values((2, 3), torch.float32)},
          "model-00002-of-00002.safetensors": {"down.weight": values((3, 2), torch.float32),
                                               "down.bias": values((3,), torch.float32)}}
for name, part in shards.items():
    safetensors.torch.save_file(part, path(name), metadata={"format": "pt"})
with open(path("model.safetensors.index.json"), "w", encoding="utf-8") as file:
    weight_map = {tensor: name for name, part in shards.items() for tensor in part}
    json.dump({"metadata": {"total_size": 60}, "weight_map": weight_map}, file, indent=2)
