"""The package on PYTHONPATH is dlaunch, and `import cohort` finds nothing there: names.py. Other packages of this Python are
left out (-S). Another project's package cohort may lie beside it."""

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


BESIDE = "import cohort, dlaunch; assert cohort.OWN"


def run(code, folder):
    subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, check=True, timeout=60)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    with tempfile.TemporaryDirectory(prefix="cohort-names-") as folder:
        run(NAMED, folder)
        run(GONE, folder)
        # Neither the program dlaunch beside a script nor a folder of the name hides the package.
        write(os.path.join(folder, "dlaunch"), "#!/bin/sh\n")
        run(NAMED, folder)
        os.remove(os.path.join(folder, "dlaunch"))
        os.mkdir(os.path.join(folder, "dlaunch"))
        run(NAMED, folder)
        write(os.path.join(folder, "cohort", "__init__.py"), "OWN = True\n")
        run(BESIDE, folder)


main()
