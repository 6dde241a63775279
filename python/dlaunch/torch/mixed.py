"""Groups with a backend for each kind of device, as "cpu:cohort,cuda:nccl".

torch.distributed takes a process group that is written in Python for the whole group, and makes no backend after it. So
the backends of the other devices are made first, by torch's own code and in a group of theirs. Cohort's process group
has that one inside, and hands over the calls on its devices."""

import functools
import inspect
import threading

import torch.distributed as dist

from dlaunch.torch import gloo

_making = threading.local()
_NAME = "cohort"


class Plan:
    """The devices that a process group of cohort is made for."""

    def __init__(self, devices=("cpu", "cuda"), rest=None, name="cohort"):
        self.name = name  # the backend that the program named
        self.devices = frozenset(devices)  # those that it serves itself
        self.rest = rest  # the group of the others, or None
        self.others = frozenset(device.type for device in rest._device_types) if rest is not None else frozenset()


def plan():
    """That of the group that this thread makes now."""
    return getattr(_making, "plan", None) or Plan()


def devices_of(backend):
    """The backend of each device of a text "device:backend,...". None for another text, or one without cohort."""
    pairs = [part.split(":") for part in str(backend).lower().split(",")]
    if any(len(pair) != 2 for pair in pairs) or _NAME not in {name for _, name in pairs}:
        return None
    dist.distributed_c10d.BackendConfig(backend)  # refuses one with a device that occurs twice
    return dict(pairs)


def group_helper(of_torch):
    """torch.distributed's function that makes every group, which makes groups of several backends too."""
    signature = inspect.signature(of_torch)

    @functools.wraps(of_torch)
    def helper(*arguments, **options):
        bound = signature.bind(*arguments, **options)
        given = bound.arguments
        backend = given["backend"]
        wanted = gloo.replaced(backend)
        devices = devices_of(wanted)
        if (devices is None and wanted is backend) or not _makes(given):
            return of_torch(*arguments, **options)
        _making.plan, text = _planned(of_torch, given, wanted, devices, "cohort" if wanted is backend else "gloo")
        try:
            given["backend"] = dist.Backend(text)
            if "device_id" in given:
                given["device_id"] = None  # the backend that it is for has it
            made = of_torch(*bound.args, **bound.kwargs)
        finally:
            _making.plan = None
        _name(made, backend)
        return made

    return helper


def _planned(of_torch, given, wanted, devices, name):
    """The plan of a group, and the text of its backends with cohort first, since torch makes no other after it."""
    if devices is None:
        return Plan(name=name), wanted
    own = [device for device, each in devices.items() if each == _NAME]
    others = {device: each for device, each in devices.items() if each != _NAME}
    rest = _rest(of_torch, given, others) if others else None
    return Plan(own, rest, name), ",".join(f"{device}:{each}" for device, each in
                                           {**dict.fromkeys(own, _NAME), **others}.items())


def _name(made, backend):
    """torch.distributed knows the group that it has made by the backend that the program named."""
    c10d = dist.distributed_c10d
    if not isinstance(made, tuple):  # PyTorch 1.13
        c10d._pg_map[made] = (backend, c10d._pg_map[made][1])
        return
    group, store = made
    c10d._world.pg_map[group] = (backend, store)
    c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(backend))


def _makes(given):
    """Whether this rank is a member of a group that does not exist yet."""
    ranks, tag = given["global_ranks_in_group"], given.get("pg_tag")
    if tag and dist.distributed_c10d._find_pg_by_ranks_and_tag(tag, ranks):
        return False
    return not ranks or dist.get_rank() in ranks


def _rest(of_torch, given, others):
    text = ",".join(f"{device}:{name}" for device, name in others.items())
    group, _ = of_torch(**{**given, "backend": dist.Backend(text), "pg_tag": None,
                           "group_name": f"{given['group_name']}/{'+'.join(others)}"})
    _forget(group)
    return group


def _forget(group):
    """Only the group that it is a part of is known to torch.distributed."""
    c10d = dist.distributed_c10d
    world = c10d._world
    world.pg_map.pop(group)
    world.pg_backend_config.pop(group, None)
    tag = world.pg_to_tag.pop(group, None)
    for key in (tag, ""):
        if group in world.tags_to_pg.get(key, []):
            world.tags_to_pg[key].remove(group)
    c10d._unregister_process_group(world.pg_names.pop(group))


def by_device(method):
    """Marks a method of the process group whose first tensor says which of the group's backends serves the call."""
    method.by_device = True
    return method


def of_several_backends(group_class):
    """The class for groups with other backends beside cohort: hands such calls over. Groups of cohort alone are not of
    it, since a look at each call's device takes a tenth of a small call's time."""
    methods = {name: _handed_over(method) for name, method in vars(group_class).items()
               if getattr(method, "by_device", False)}
    return type("Mixed" + group_class.__name__, (group_class,), {**methods, "supports_splitting": False})


def _handed_over(method):
    name = method.__name__

    @functools.wraps(method)
    def call(self, *arguments, **options):
        if _device_of(arguments) in self.others:
            return getattr(self.rest, name)(*arguments, **options)
        return method(self, *arguments, **options)

    return call


def _device_of(arguments):
    for argument in arguments:
        while isinstance(argument, (list, tuple)) and argument:
            argument = argument[0]
        device = getattr(argument, "device", None)
        if hasattr(argument, "dtype") and device is not None:
            return device.type
    return "cpu"
