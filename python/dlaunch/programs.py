"""The programs of the wheel, dlaunch and collperf: they lie in the package's folder bin."""

import os
import sys


def _run(name):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    # `dlaunch train.py` and `dlaunch -m package.module` run python3: this interpreter's, where it has that name.
    own = os.path.dirname(sys.executable)
    if os.access(os.path.join(own, "python3"), os.X_OK):
        os.environ["PATH"] = own + os.pathsep + os.environ.get("PATH", os.defpath)
    os.execv(os.path.join(folder, name), [name, *sys.argv[1:]])


def dlaunch():
    _run("dlaunch")


def collperf():
    _run("collperf")
