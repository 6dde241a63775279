"""Wheels of this package that were built under its former name, cohort.

Such a wheel has the same module, the same backend and the same programs. Both modules in one process would end it, because
both register the same messages with Protobuf. Another project's package of that name is left alone."""

import os
from importlib.machinery import PathFinder


def refuse():
    """Raises where one is installed, whether it is loaded or would be by torch's entry points."""
    spec = PathFinder.find_spec("cohort")
    for folder in (spec and spec.submodule_search_locations) or ():
        if os.path.exists(os.path.join(folder, "_comm.abi3.so")):
            raise ImportError(f"an older wheel of dlaunch, called cohort, is installed in {folder}: uninstall it (pip uninstall "
                              "cohort), then install dlaunch again (pip install --force-reinstall), because both wheels "
                              "have the program dlaunch")
