"""Runs programs of other people's libraries over gloo, or the library's own network, and over cohort, with unchanged
sources: foreign.py <dlaunch> <python> [--ranks N] [--turns N] [program...].

Fails where the results differ by more than TOLERANCE of the largest number, where what a program calls the same differs,
or where the wrong one served. Prints the time of both from the end of the imports, the least of the turns, and the time
of an iteration where the program tells it. Several turns begin with a run of both that does not count, since libraries
compile and fill caches then, and each turn begins with the other one. The times of a single turn compare nothing. Ends
with 77, and a line `skipped: ...` each, where the libraries of all programs are absent."""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "foreign")
EXAMPLES = os.path.join(HERE, "..", "..", "comm", "c", "examples")
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
    "lightgbm": ["lightgbm"],
}
OWN_NETWORK = ("lightgbm",)  # programs whose library has a network of its own; the others say gloo
TOLERANCE = 1e-4
SECONDS = 900  # DeepSpeed compiles a library when it is used for the first time


def build_of(dlaunch):
    """The library for C and the folder of its header, of the build that dlaunch is of."""
    build = os.path.dirname(os.path.dirname(os.path.abspath(dlaunch)))
    return os.path.join(build, "package", "lib", "libcohort_c.so"), os.path.join(build, "include")


def lacking(arguments, program):
    """Why this interpreter cannot run the program; "" where it can."""
    imports = "; ".join(f"import {module}" for module in PROGRAMS[program])
    found = subprocess.run([arguments.python, "-c", imports], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return f"{arguments.python}: {(found.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    if program in OWN_NETWORK and not os.path.exists(build_of(arguments.dlaunch)[0]):
        return f"{build_of(arguments.dlaunch)[0]} is not built"
    return "" if program not in OWN_NETWORK or shutil.which("cc") else "cc is not installed"


def free_addresses(ranks):
    """Ports of this host that nobody listens on now."""
    sockets = [socket.socket() for _ in range(ranks)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return ",".join(addresses)


def command_of(arguments, program, backend, folder):
    """The command of a rank, dlaunch's options and what is added to the environment."""
    script = os.path.join(FOLDER, program + "_program.py")
    path = [os.path.join(FOLDER, "spy"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": folder}
    if program not in OWN_NETWORK:
        return [script], ["--torch-backend", "cohort"] if backend == "cohort" else [], environment
    environment["LIGHTGBM_MACHINES"] = free_addresses(arguments.ranks)
    if backend != "cohort":
        return [script], [], environment
    library, include = build_of(arguments.dlaunch)
    where = os.path.dirname(library)
    environment["LIGHTGBM_NETWORK"] = os.path.join(folder, "liblightgbm_network.so")
    subprocess.run(["cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC",
                    os.path.join(EXAMPLES, "lightgbm_network.c"), "-o", environment["LIGHTGBM_NETWORK"], "-I" + include,
                    "-L" + where, "-lcohort_c", "-Wl,-rpath," + where], check=True)
    return [os.path.join(EXAMPLES, "lightgbm_over_cohort.py"), script], [], environment


def run(arguments, program, backend):
    """The numbers, the text that must be the same, the seconds, and the milliseconds of an iteration, of one run."""
    with tempfile.TemporaryDirectory(prefix="cohort-foreign-") as folder:
        command, options, environment = command_of(arguments, program, backend, folder)
        ran = subprocess.run([arguments.dlaunch, "-n", str(arguments.ranks), *options, "--", arguments.python, *command],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                             timeout=SECONDS, cwd=folder, env=environment)
    numbers = re.search(r"^\[0\] result (.*)$", ran.stdout, re.M)
    same = re.search(r"^\[0\] same (.*)$", ran.stdout, re.M)
    seconds = re.search(r"^\[0\] took (\S+) s$", ran.stdout, re.M)
    each = re.search(r"^\[0\] each (\S+) ms$", ran.stdout, re.M)
    served = re.findall(r"^\[\d+\] served by (\S+)$", ran.stdout, re.M)
    expected = ["cohort" if backend == "cohort" else "own" if program in OWN_NETWORK else "torch"] * arguments.ranks
    if ran.returncode != 0 or numbers is None or seconds is None or served != expected:
        print(ran.stdout)
        sys.exit(f"{program} over {backend}: exit status {ran.returncode}, served by {served or 'nobody'}")
    return ([float(number) for number in numbers[1].split()], same and same[1], float(seconds[1]),
            float(each[1]) if each else None)


def compare(arguments, program):
    """A row of the table."""
    times, each, results, same = {"theirs": [], "cohort": []}, {"theirs": [], "cohort": []}, {}, {}
    for turn in range(-1 if arguments.turns > 1 else 0, arguments.turns):
        for backend in sorted(times, reverse=turn % 2 == 0):
            results[backend], same[backend], took, iteration = run(arguments, program, backend)
            if turn >= 0:
                times[backend].append(took)
                each[backend].append(iteration)
    ours, theirs = results["cohort"], results["theirs"]
    apart = max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) / max(map(abs, theirs))
    if not apart <= TOLERANCE or same["cohort"] != same["theirs"]:
        sys.exit(f"{program}: the numbers are {apart:.2g} of the largest apart, what must be the same is "
                 f"{same['cohort']} and {same['theirs']}:\n{ours}\n{theirs}")
    row = (f"{program:18} {arguments.ranks:5} {len(ours):8} {min(times['theirs']):9.2f} {min(times['cohort']):9.2f}"
           f"  {apart:.2g}")
    if each["cohort"][0] is None:
        return row
    return f"{row}; an iteration took {min(each['theirs']):.2f} and {min(each['cohort']):.2f} ms"


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
        why = lacking(arguments, program)
        if why:
            print(f"skipped: {program}: {why}", flush=True)
            continue
        if not compared:
            print("program            ranks  numbers theirs, s cohort, s  apart, of the largest number")
        print(compare(arguments, program), flush=True)
        compared = True
    if not compared:
        sys.exit(77)


assert {name[:-len("_program.py")] for name in os.listdir(FOLDER) if name.endswith("_program.py")} == set(PROGRAMS)
if __name__ == "__main__":
    main()
