"""The package on PYTHONPATH is dlaunch, and `import cohort` finds nothing there: names.py. Other packages of this Python are
left out (-S), since another project has a package cohort."""

import os
import subprocess
import sys
import tempfile

NAMED = """
import dlaunch
for name in dlaunch.__all__:
    value = getattr(dlaunch, name)
    assert getattr(value, "__module__", "dlaunch").split(".")[0] == "dlaunch", (name, value.__module__)
"""
GONE = """
import importlib
for name in ("cohort", "cohort.torch", "cohort._comm"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == "cohort", error
    else:
        raise SystemExit(f"import {name} finds {importlib.import_module(name)}")
"""


def run(code, folder):
    subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, check=True, timeout=60)


def main():
    with tempfile.TemporaryDirectory(prefix="cohort-names-") as folder:
        run(NAMED, folder)
        run(GONE, folder)
        # Neither the program dlaunch beside a script nor a folder of the name hides the package.
        with open(os.path.join(folder, "dlaunch"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n")
        run(NAMED, folder)
        os.remove(os.path.join(folder, "dlaunch"))
        os.mkdir(os.path.join(folder, "dlaunch"))
        run(NAMED, folder)


main()
