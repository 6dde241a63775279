"""Makes the backend and the store known to torch.distributed."""

import datetime
import functools
import sys

from dlaunch.communicator import add_internal

_registered = False


def register():
    """Registers the backend "cohort" and the store "cohort://" once. Does nothing where torch was built without torch.distributed."""
    global _registered
    import torch
    import torch.distributed as dist

    if _registered or not dist.is_available():
        return
    from dlaunch.torch import gloo

    if gloo.is_asked_for():
        gloo.check_version()
    try:
        _register(torch, dist)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise RuntimeError(f"the backend cohort does not fit PyTorch {torch.__version__}: {error}. It is tested with "
                           "1.13, 2.11 and 2.15: use one of these, or leave out --torch-backend cohort") from error
    _registered = True


def _register(torch, dist):
    from dlaunch.torch.mixed import group_helper
    from dlaunch.torch.process_group import create
    from dlaunch.torch.profiled import show_record_functions
    from dlaunch.torch.store import instead_of, rendezvous
    from dlaunch.torch.uncompiled import leave_out

    add_internal(torch)
    for name in ("typing_extensions", "warnings"):  # they wrap torch's deprecated functions
        if name in sys.modules:
            add_internal(sys.modules[name])
    try:
        dist.Backend.register_backend("cohort", create, extended_api=True, devices=["cpu", "cuda"])
    except TypeError:  # PyTorch 1.13 knows no devices
        dist.Backend.register_backend("cohort", create, extended_api=True)
    dist.register_rendezvous_handler("cohort", rendezvous)
    # The function dist.rendezvous hides the module of this name, whose table has no function that replaces an entry.
    handlers = getattr(sys.modules["torch.distributed.rendezvous"], "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = instead_of(handlers["env"])
    c10d = dist.distributed_c10d
    c10d._new_process_group_helper = group_helper(c10d._new_process_group_helper)
    monitored_barrier, batch = _monitored_barrier(dist.monitored_barrier), _batch(dist.batch_isend_irecv)
    for module in (dist, c10d):
        module.monitored_barrier = monitored_barrier
        module.batch_isend_irecv = batch
    if hasattr(c10d, "_maybe_attach_flight_recorder"):
        c10d._maybe_attach_flight_recorder = _flight_recorder(c10d._maybe_attach_flight_recorder)
    leave_out("dlaunch")
    show_record_functions(torch)


def _monitored_barrier(of_torch):
    """torch's function refuses all backends but Gloo."""
    import torch.distributed as dist
    from dlaunch.torch.process_group import ProcessGroup

    @functools.wraps(of_torch)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        members = group if group is not None else dist.distributed_c10d._get_default_group()
        if dist.get_rank(group) < 0 or not isinstance(members, ProcessGroup):
            return of_torch(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = datetime.timedelta(seconds=timeout)
        return members.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def _batch(of_torch):
    """torch's function starts messages one by one on a group whose class is not its own. On CUDA they would wait for
    one another for ever."""
    import torch.distributed as dist
    from dlaunch.torch.cuda import batch_isend_irecv as together
    from dlaunch.torch.process_group import ProcessGroup

    @functools.wraps(of_torch)
    def batch_isend_irecv(p2p_op_list):
        first = p2p_op_list[0] if p2p_op_list else None
        if isinstance(first, dist.P2POp) and first.tensor.device.type != "cpu":
            group = first.group or dist.distributed_c10d._get_default_group()
            if isinstance(group, ProcessGroup) and group._get_backend(first.tensor.device).supports_coalescing:
                return together(p2p_op_list)
        return of_torch(p2p_op_list)

    return batch_isend_irecv


def _flight_recorder(of_torch):
    """torch's function (2.15) wants a backend in C++. Cohort's black box records the calls of its groups."""
    from dlaunch.torch.process_group import ProcessGroup

    @functools.wraps(of_torch)
    def attach(group, *arguments, **options):
        if not isinstance(group, ProcessGroup):
            of_torch(group, *arguments, **options)

    return attach
