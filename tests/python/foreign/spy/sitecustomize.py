"""A user's own sitecustomize, behind that of dlaunch --torch-backend. Each rank says at its end what served its groups."""

import atexit
import os
import sys


def _tell():
    groups = sys.modules.get("cohort.torch.groups")
    if "torch" in sys.modules and "RANK" in os.environ:
        print("served by", "torch" if getattr(groups, "_world", None) is None else "cohort", flush=True)


atexit.register(_tell)
