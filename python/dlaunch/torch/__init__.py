"""The backend "cohort" of torch.distributed, for CPU and CUDA tensors. Importing this module registers it; versions of
PyTorch that read the entry point `torch.backends` need no import:

    import torch.distributed as dist
    dist.init_process_group("cohort")          # under dlaunch, or under torchrun
"""

from dlaunch.torch.registration import register

register()
