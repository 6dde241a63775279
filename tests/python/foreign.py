"""Runs programs of other people's libraries, which say gloo, over gloo and over cohort, with unchanged sources:
foreign.py <dlaunch> <python> [--ranks N] [--turns N] [program...].

Fails where the results differ by more than TOLERANCE of the largest number, or where the wrong one served. Prints the
time of both from the end of the imports, the least of the turns. Ends with 77, and a line `skipped: ...` each, where the
libraries of all programs are absent."""

import argparse
import os
import re
import subprocess
import sys
import tempfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "foreign")
# Files in FOLDER, and the modules that they want.
PROGRAMS = {
    "pytorch": ["torch.distributed.device_mesh"],
    "accelerate": ["accelerate"],
    "accelerate_scripts": ["accelerate.test_utils.scripts.test_ops"],
    "fabric": ["lightning"],
    "lightning": ["lightning"],
    "hf_trainer": ["transformers", "accelerate"],
    "trl": ["trl", "datasets"],
    "fairscale": ["fairscale"],
    "deepspeed": ["deepspeed"],
}
TOLERANCE = 1e-4
SECONDS = 900  # DeepSpeed compiles a library when it is used for the first time


def lacking(python, modules):
    """Why this interpreter cannot run a program that wants these modules; "" where it can."""
    found = subprocess.run([python, "-c", "; ".join(f"import {module}" for module in modules)], capture_output=True,
                           text=True, check=False)
    return "" if found.returncode == 0 else (found.stderr.strip().splitlines() or ["no reason given"])[-1]


def run(arguments, program, backend):
    """The numbers and the seconds of one run."""
    script = os.path.join(FOLDER, program + "_program.py")
    switch = ["--torch-backend", "cohort"] if backend == "cohort" else []
    path = [os.path.join(FOLDER, "spy"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="cohort-foreign-") as folder:
        ran = subprocess.run([arguments.dlaunch, "-n", str(arguments.ranks), *switch, "--", arguments.python, script],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                             timeout=SECONDS, cwd=folder,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": folder})
    numbers = re.search(r"^\[0\] result (.*)$", ran.stdout, re.M)
    seconds = re.search(r"^\[0\] took (\S+) s$", ran.stdout, re.M)
    served = re.findall(r"^\[\d+\] served by (\S+)$", ran.stdout, re.M)
    expected = [backend if backend == "cohort" else "torch"] * arguments.ranks
    if ran.returncode != 0 or numbers is None or seconds is None or served != expected:
        print(ran.stdout)
        sys.exit(f"{program} over {backend}: exit status {ran.returncode}, served by {served or 'nobody'}")
    return [float(number) for number in numbers[1].split()], float(seconds[1])


def compare(arguments, program):
    """A row of the table."""
    times, results = {"gloo": [], "cohort": []}, {}
    for _ in range(arguments.turns):
        for backend, seconds in times.items():
            results[backend], took = run(arguments, program, backend)
            seconds.append(took)
    ours, theirs = results["cohort"], results["gloo"]
    apart = max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) / max(map(abs, theirs))
    if not apart <= TOLERANCE:
        sys.exit(f"{program}: the numbers are {apart:.2g} of the largest apart:\n{ours}\n{theirs}")
    return f"{program:18} {arguments.ranks:5} {len(ours):8} {min(times['gloo']):9.2f} {min(times['cohort']):9.2f}  {apart:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("python")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("programs", nargs="*", default=[])
    arguments = parser.parse_intermixed_args()
    arguments.dlaunch = os.path.abspath(arguments.dlaunch)
    unknown = set(arguments.programs) - set(PROGRAMS)
    if unknown:
        sys.exit(f"no such program: {' '.join(sorted(unknown))}; there are {' '.join(PROGRAMS)}")
    compared = False
    for program in arguments.programs or PROGRAMS:
        why = lacking(arguments.python, PROGRAMS[program])
        if why:
            print(f"skipped: {program}: {arguments.python}: {why}", flush=True)
            continue
        if not compared:
            print("program            ranks  numbers   gloo, s cohort, s  apart, of the largest number")
        print(compare(arguments, program), flush=True)
        compared = True
    if not compared:
        sys.exit(77)


assert {name[:-len("_program.py")] for name in os.listdir(FOLDER) if name.endswith("_program.py")} == set(PROGRAMS)
if __name__ == "__main__":
    main()
