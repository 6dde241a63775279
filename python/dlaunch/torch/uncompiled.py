"""Keeps torch.compile out of this package.

torch calls the methods of the process group from C++, also while a compiled model runs. The compiler would then trace
them as a part of the model, and fail at the communicator, which it does not know. They run as they are, like the
backends that are written in C++."""

import sys
import types

import torch


def leave_out(package):
    """Marks all functions of the package's loaded modules. Without effect on calls, and where torch has no compiler."""
    mark = _marker()
    if mark is None:
        return
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for code in _codes_of(module):
                mark(code)


def _marker():
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP  # what they call is not traced either
        return lambda code: frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return getattr(frames, "skip_code", None)  # of PyTorch 2.0 to 2.5


def _codes_of(module):
    found = set()
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            members = vars(value).values() if isinstance(value, type) else [value]
            for member in members:
                _add(getattr(member, "__func__", member), found)  # static and class methods too
    return found


def _add(function, found):
    if isinstance(function, property):
        for accessor in (function.fget, function.fset, function.fdel):
            _add(accessor, found)
    code = function if isinstance(function, types.CodeType) else getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or code in found:
        return
    found.add(code)
    for constant in code.co_consts:  # functions in it
        if isinstance(constant, types.CodeType):
            _add(constant, found)
