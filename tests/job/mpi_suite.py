#!/usr/bin/env python3
"""Runs an MPI library's own small test programs under its mpirun and under dlaunch: the same ones have to pass.

usage: mpi_suite.py DLAUNCH FOLDER --cc MPICC --mpirun "MPIRUN OPTIONS" [--most N] [--ranks N] [--dlaunch "OPTIONS"]

FOLDER is test/mpi of MPICH's sources, whose programs are written for any MPI and print "No Errors"; nothing of it is kept
here. A program that does not compile as it is, or wants more than --ranks ranks, is left out. By hand: sources are not
on every machine.
"""
import argparse
import concurrent.futures
import glob
import os
import shlex
import signal
import subprocess
import sys
import tempfile

FOLDERS = ("coll", "pt2pt", "comm", "group", "topo", "attr", "datatype", "errhan", "init", "info")
# As the configure script of the sources finds it on any Linux.
CONFIGURATION = """
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_NONE
#define HAVE_MPI_WIN_CREATE 1
#define HAVE_STDLIB_H 1
#define HAVE_STRING_H 1
#define HAVE_UNISTD_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_STDARG_H 1
#define HAVE_STDINT_H 1
"""
LIMIT_S = 60


def programs_of(folder, ranks):
    """(path of the source, number of ranks), each program once."""
    found = {}
    for name in FOLDERS:
        for test_list in ("testlist", "testlist.in"):
            path = os.path.join(folder, name, test_list)
            if not os.path.exists(path):
                continue
            with open(path) as file:
                for line in file:
                    words = line.split()
                    if len(words) < 2 or not words[1].isdigit() or any("=" in word for word in words[2:]):
                        continue
                    source = os.path.join(folder, name, words[0] + ".c")
                    if int(words[1]) <= ranks and os.path.exists(source):
                        found.setdefault(source, int(words[1]))
    return sorted(found.items())


def run(command):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True)
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return False, "more than %d s\n%s" % (LIMIT_S, out)
    return process.returncode == 0 and "No Errors" in out, "exit status %d\n%s" % (process.returncode, out)


class Suite:
    def __init__(self, arguments, build):
        self.arguments = arguments
        self.build = build
        below = os.path.join(build, "below")  # one file is included from the folder above
        os.mkdir(below)
        self.flags = ["-w", "-DOMPI_OMIT_MPI1_COMPAT_DECLS=0"]  # Open MPI 4 has the functions that MPI 3.0 removed
        self.flags += ["-I" + folder for folder in (build, below, os.path.join(arguments.folder, "include"),
                                                    os.path.join(arguments.folder, "dtpools", "include"))]
        for name in ("mpitestconf.h", "dtpoolsconf.h"):
            with open(os.path.join(build, name), "w") as file:
                file.write(CONFIGURATION)
        # Programs take what they need of it; one file of it does not compile with every library.
        self.helpers = os.path.join(build, "helpers.a")
        sources = [os.path.join(arguments.folder, "util", name)
                   for name in ("mtest.c", "mtest_common.c", "mtest_single.c", "dtypes.c")]
        for source in sources + sorted(glob.glob(os.path.join(arguments.folder, "dtpools", "src", "*.c"))):
            target = os.path.join(build, os.path.basename(source) + ".o")
            if subprocess.run([arguments.cc, *self.flags, "-c", source, "-o", target], capture_output=True).returncode == 0:
                subprocess.run(["ar", "q", self.helpers, target], check=True, stderr=subprocess.DEVNULL)

    def compile(self, source):
        program = os.path.join(self.build, os.path.relpath(source, self.arguments.folder).replace("/", "_")[:-2])
        made = subprocess.run([self.arguments.cc, *self.flags, source, self.helpers, "-lm", "-o", program],
                              capture_output=True)
        return program if made.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dlaunch")
    parser.add_argument("folder")
    parser.add_argument("--cc", default="mpicc")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--dlaunch", dest="options", default="", help="options for dlaunch")
    parser.add_argument("--most", type=int, default=50, help="this many programs that pass under mpirun")
    parser.add_argument("--ranks", type=int, default=4)
    arguments = parser.parse_args()
    passed, differ, left_out = 0, [], []
    with tempfile.TemporaryDirectory(prefix="cohort-mpi-suite-") as build:
        suite = Suite(arguments, build)
        programs = programs_of(arguments.folder, arguments.ranks)
        with concurrent.futures.ThreadPoolExecutor(1) as compiler:
            built = compiler.map(lambda program: suite.compile(program[0]), programs)
            for (source, ranks), program in zip(programs, built):
                name = os.path.relpath(source, arguments.folder)
                if passed + len(differ) == arguments.most:
                    compiler.shutdown(cancel_futures=True)
                    break
                if program is None:
                    continue
                theirs, _ = run([*shlex.split(arguments.mpirun), "-n", str(ranks), program])
                if not theirs:
                    left_out.append(name)
                    continue
                ours, why = run([arguments.dlaunch, *shlex.split(arguments.options), "-n", str(ranks), program])
                if ours:
                    passed += 1
                else:
                    differ.append(name)
                    print("%s with %d ranks passes under mpirun and not under dlaunch: %s" % (name, ranks, why), flush=True)
    print("%d programs pass under both, %d only under mpirun%s; %d do not pass under mpirun%s" % (
        passed, len(differ), ": " + ", ".join(differ) if differ else "", len(left_out),
        ": " + ", ".join(left_out) if left_out else ""))
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
