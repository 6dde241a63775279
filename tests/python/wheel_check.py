"""Checks the wheel of the package dlaunch that this interpreter has installed: wheel_check.py <README.md>. The page's program
that calls init_process_group runs under dlaunch, where there is a torch; another one where there is none."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile

import beside

IMPORT_SECONDS = 0.15


def run(command, folder):
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
                         cwd=folder)
    if ran.returncode != 0:
        sys.exit(f"{ran.stdout}\nexit status {ran.returncode} of {' '.join(command)}")
    return ran.stdout


def check_import_time(folder):
    timed = "import time; began = time.perf_counter(); import dlaunch; print(time.perf_counter() - began)"
    quickest = min(float(run([sys.executable, "-c", timed], folder)) for _ in range(5))
    print(f"import dlaunch: {1000 * quickest:.0f} ms (promised: {1000 * IMPORT_SECONDS:.0f})")
    if quickest > 10 * IMPORT_SECONDS:
        sys.exit("the import is too slow")


def script_of(page):
    if importlib.util.find_spec("torch") is None:
        print("skipped: the script for PyTorch: this interpreter has no torch")
        return f"{beside.OWN}\nprint('rank', world.rank, 'of', world.size, 'has', data[0])\n"
    with open(page, encoding="utf-8") as file:
        return next(text for text in re.findall(r"```python\n(.*?)```", file.read(), re.S) if "optimizer" in text)


def check_programs(folder, page):
    """dlaunch and collperf, which lie beside this interpreter; a script on one node and on two simulated ones."""
    dlaunch, collperf = (os.path.join(sysconfig.get_path("scripts"), name) for name in ("dlaunch", "collperf"))
    print(run([dlaunch, "-n", "2", collperf, "all_reduce", "-b", "8", "-e", "1K", "-f", "8"], folder))
    with open(os.path.join(folder, "train.py"), "w", encoding="utf-8") as file:
        file.write(script_of(page))
    for placement in (["-n", "4"], ["--simulate-nodes", "2", "--nproc-per-node", "2"]):
        for command in (["python", "train.py"], ["train.py"]):
            printed = run([dlaunch, *placement, *command], folder)
            print(" ".join(["$ dlaunch", *placement, *command]), printed, sep="\n")
            ranks = sorted(re.findall(r"rank (\d) of 4", printed))
            values = set(re.findall(r"has (\S+)", printed))
            if ranks != ["0", "1", "2", "3"] or len(values) != 1:
                sys.exit("these are not four lines of four ranks with one value")


def main():
    package = importlib.util.find_spec("dlaunch")
    print(f"dlaunch {importlib.metadata.version('dlaunch')} in {package.origin}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="cohort-wheel-") as folder:
        check_import_time(folder)
        beside.check(beside.OTHERS)
        check_programs(folder, sys.argv[1])


main()
