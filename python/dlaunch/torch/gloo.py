"""Cohort in the place of `gloo`, for programs that nobody changed: COHORT_TORCH_BACKEND=cohort.

A group for which the program says gloo is then one of cohort. It keeps the name gloo, because programs ask for it:
torch.distributed.get_backend() answers as it would without cohort. serves() tells the truth."""

import os

import torch
import torch.distributed as dist

VARIABLE = "COHORT_TORCH_BACKEND"
_GLOO, _OURS = "gloo", "cohort"
# The devices that cohort serves. Gloo's parts for others, such as "mps:gloo", stay Gloo's.
_DEVICES = ("cpu", "cuda")


def is_asked_for():
    """Whether the environment asks for cohort in the place of gloo. Raises where it says what nobody knows."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "torch", _OURS):
        raise ValueError(f"{VARIABLE}={value}: give cohort, which serves gloo by cohort, or torch, which leaves it as it is")
    return value == _OURS


def check_version(text=torch.__version__):
    """Raises for a PyTorch that has not what cohort builds on."""
    major, minor = (int(part) for part in text.split(".")[:2])
    if (major, minor) < (1, 13):
        raise RuntimeError(f"{VARIABLE}=cohort: PyTorch {text} is too old for the backend cohort, which wants 1.13 or "
                           "later: use one, or leave out --torch-backend cohort")


def replaced(backend):
    """The text of a backend with cohort where it says gloo. The same object where nothing is to be replaced."""
    if not is_asked_for():
        return backend
    text = str(backend).lower()
    if text == _GLOO:
        return _OURS
    devices = _devices_of(backend, text)
    if not any(name == _GLOO and device in _DEVICES for device, name in devices.items()):
        return backend
    return ",".join(f"{device}:{_OURS if name == _GLOO and device in _DEVICES else name}"
                    for device, name in devices.items())


def _devices_of(backend, text):
    """The backend of each device, where the text names several or none."""
    config = getattr(dist.distributed_c10d, "BackendConfig", None)  # absent in PyTorch 1.13
    if config is None or (":" not in text and text != "undefined"):
        return {}
    return config(backend).get_device_backend_map()


def serves(group=None):
    """Whether cohort serves this group, or the default one."""
    from dlaunch.torch.process_group import ProcessGroup

    return isinstance(group if group is not None else dist.distributed_c10d._get_default_group(), ProcessGroup)
