"""example_test.py <language> <dlaunch> <libcohort_c.so> <include folder>: compiles an example of comm/c/examples as its
users do, and runs it alone and in jobs. "twice" is a program that joins its job twice."""

import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "..", "comm", "c", "examples")
ONE_NODE = ("--nproc-per-node", "3")
TWO_NODES = ("--simulate-nodes", "2", "--nproc-per-node", "2")


def run(command, folder, **environment):
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def compiled(language, folder, library, include):
    """The command that runs the example."""
    where = os.path.dirname(library)
    link = ["-L" + where, "-lcohort_c", "-Wl,-rpath," + where]
    source, compiler = {
        "c": ("ring.c", ["cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I" + include]),
        "twice": ("twice.c", ["cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I" + include]),
        "fortran": ("ring.f90", ["gfortran", "-std=f2008", "-Wall"]),
        "rust": ("ring.rs", ["rustc", "-D", "warnings"]),
        "python": ("ring.py", None),
    }[language]
    source = os.path.join(HERE if language == "twice" else EXAMPLES, source)
    if compiler is None:
        return [sys.executable, source]
    if shutil.which(compiler[0]) is None:
        print(f"skipped: the example in {language}: {compiler[0]} is not installed")
        sys.exit(77)
    if language == "rust":
        link = ["-L", where, "-l", "cohort_c", "-C", "link-arg=-Wl,-rpath," + where]
    program = os.path.join(folder, "example")
    run([*compiler, source, "-o", program, *link], folder)
    return [program]


def check(output, ranks):
    expected = f"{ranks} ranks, around the ring {ranks * (ranks - 1) // 2}, all-reduce {ranks * (ranks - 1) // 2}, "
    if expected not in output or f" on rank {ranks // 2}" not in output or "least -1.5" not in output:
        sys.exit(f"expected '{expected}least -1.5 on rank {ranks // 2}' in:\n{output}")


def main():
    language, dlaunch, library, include = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        example = compiled(language, folder, library, include)
        environment = {"COHORT_C_LIBRARY": library}
        check(run(example, folder, **environment), 1)
        for options, ranks in ((ONE_NODE, 3), (TWO_NODES, 4)):
            check(run([dlaunch, *options, "--", *example], folder, **environment), ranks)


if __name__ == "__main__":
    main()
