"""Makes the backend and the store known to torch.distributed."""

import datetime
import functools
import os
import sys

from cohort.communicator import add_internal_folder

_registered = False


def register():
    """Registers the backend "cohort" and the store "cohort://" once. Does nothing where torch was built without torch.distributed."""
    global _registered
    import torch
    import torch.distributed as dist

    if _registered or not dist.is_available():
        return
    from cohort.torch.process_group import create
    from cohort.torch.store import instead_of, rendezvous

    add_internal_folder(os.path.dirname(os.path.abspath(torch.__file__)))
    try:
        dist.Backend.register_backend("cohort", create, extended_api=True, devices=["cpu"])
    except TypeError:  # PyTorch 1.13 knows no devices
        dist.Backend.register_backend("cohort", create, extended_api=True)
    dist.register_rendezvous_handler("cohort", rendezvous)
    # The function dist.rendezvous hides the module of this name, whose table has no function that replaces an entry.
    handlers = getattr(sys.modules["torch.distributed.rendezvous"], "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = instead_of(handlers["env"])
    for module in (dist, dist.distributed_c10d):
        module.monitored_barrier = _monitored_barrier(module.monitored_barrier)
    _registered = True


def _monitored_barrier(of_torch):
    """torch's function refuses all backends but Gloo."""
    import torch.distributed as dist

    @functools.wraps(of_torch)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        if dist.get_rank(group) < 0 or dist.get_backend(group) != "cohort":
            return of_torch(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = datetime.timedelta(seconds=timeout)
        members = group if group is not None else dist.distributed_c10d._get_default_group()
        return members.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier
