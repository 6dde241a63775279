"""Groups with a backend for each kind of device, as "cpu:cohort,cuda:nccl".

torch.distributed takes a process group that is written in Python for the whole group, and makes no backend after it. So
the backends of the other devices are made first, by torch's own code and in a group of theirs. Cohort's process group
has that one inside, and hands over the calls on its devices."""

import functools
import inspect
import threading

import torch.distributed as dist

_making = threading.local()
_NAME = "cohort"


class Plan:
    """The devices that a process group of cohort is made for."""

    def __init__(self, devices=("cpu", "cuda"), rest=None):
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
        devices = devices_of(backend)
        if devices is None or not _makes(given):
            return of_torch(*arguments, **options)
        own = [device for device, name in devices.items() if name == _NAME]
        others = {device: name for device, name in devices.items() if name != _NAME}
        _making.plan = Plan(own, _rest(of_torch, given, others) if others else None)
        try:
            # first, since torch makes no other after it
            text = ",".join(f"{device}:{name}" for device, name in {**dict.fromkeys(own, _NAME), **others}.items())
            given["backend"] = dist.Backend(text)
            if "device_id" in given:
                given["device_id"] = None  # the backend that it is for has it
            group, store = of_torch(*bound.args, **bound.kwargs)
        finally:
            _making.plan = None
        c10d = dist.distributed_c10d
        c10d._world.pg_map[group] = (backend, store)
        c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
        return group, store

    return helper


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
    return type("Mixed" + group_class.__name__, (group_class,), methods)


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
