"""The package dlaunch beside other users of Abseil, Protobuf, gRPC and OpenSSL in one process: beside.py <module>... imports
each before and after dlaunch, and uses both. Ends with 77 and a line `skipped: ...` where all modules are absent."""

import importlib.util
import subprocess
import sys
import tempfile

OWN = "import dlaunch, ctypes; world = dlaunch.init(); data = (ctypes.c_float * 4)(1, 2, 3, 4); world.all_reduce(data); world.barrier()"
# Another user of the libraries that the module holds: the line that imports it, and lines that use it.
OTHERS = {
    "numpy": "import numpy; assert numpy.ones(8).sum() == 8",
    "google.protobuf": """
from google.protobuf import struct_pb2
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "upb", api_implementation.Type()
message = struct_pb2.Struct()
message.update({"a": [1, 2, {"b": "c"}]})
assert struct_pb2.Struct.FromString(message.SerializeToString()) == message""",
    "grpc": """
import grpc
from concurrent import futures
from tempfile import mkdtemp
address = "unix:" + mkdtemp(dir=".") + "/socket"
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", {
    "echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request)})])
assert server.add_insecure_port(address)
server.start()
with grpc.insecure_channel(address) as channel:
    assert channel.unary_unary("/echo/echo")(b"text", timeout=60) == b"text"
server.stop(None).wait()""",
    "ssl": """
import hashlib, ssl
ssl.create_default_context()
assert hashlib.sha256(b"").hexdigest().startswith("e3b0c442")""",
    "torch": """
import torch
import dlaunch.torch
assert torch.ones(64, 64).matmul(torch.ones(64, 64)).sum() == 64 ** 3
assert torch.distributed.Backend.COHORT.lower() == "cohort"
torch.nn.Linear(4, 4)(torch.ones(4)).sum().backward()""",
    "tensorflow": """
import tensorflow
assert tensorflow.reduce_sum(tensorflow.ones((8, 8))).numpy() == 64
tensorflow.function(lambda x: x + 1).get_concrete_function(tensorflow.ones(2)).graph.as_graph_def().SerializeToString()""",
    "onnx": """
import onnx
from onnx import TensorProto, helper
sum_of = helper.make_node("Add", ["x", "x"], ["y"])
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
onnx.checker.check_model(helper.make_model(helper.make_graph([sum_of], "g", ends[:1], ends[1:])))""",
}


def check(names):
    """Returns how many of the modules are here."""
    found = 0
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            print(f"skipped: beside {name}: {sys.executable} does not have it")
            continue
        found += 1
        with tempfile.TemporaryDirectory(prefix="cohort-beside-") as folder:
            for first, second in ((f"import {name}", "import dlaunch"), ("import dlaunch", f"import {name}")):
                text = f"{first}\n{second}\n{OTHERS[name]}\n{OWN}\n{OTHERS[name]}"
                subprocess.run([sys.executable, "-c", text], check=True, timeout=600, cwd=folder)
        print(f"beside {name}, imported before it and after it: no clash")
    return found


if __name__ == "__main__":
    sys.exit(0 if check(sys.argv[1:]) else 77)
