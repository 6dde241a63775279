"""Makes the backend known to torch.distributed."""

import os

from cohort.communicator import add_internal_folder

_registered = False


def register():
    """Registers the backend "cohort" once. Does nothing where torch was built without torch.distributed."""
    global _registered
    import torch
    import torch.distributed as dist

    if _registered or not dist.is_available():
        return
    from cohort.torch.process_group import create

    add_internal_folder(os.path.dirname(os.path.abspath(torch.__file__)))
    try:
        dist.Backend.register_backend("cohort", create, extended_api=True, devices=["cpu"])
    except TypeError:  # PyTorch 1.13 knows no devices
        dist.Backend.register_backend("cohort", create, extended_api=True)
    _registered = True
