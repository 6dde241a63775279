"""seam_test.py <source> <dlaunch> <libcohort_c.so> <include folder> <python>: compiles a program by which another library
or program uses Cohort, against that library's own headers, and runs it in jobs. The headers come from Debian or from the
site-packages of <python>. Ends with 77 and a line `skipped: ...` where they are absent."""

import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", ".."))
EXAMPLES = os.path.join(ROOT, "comm", "c", "examples")
ONE_NODE = ("--nproc-per-node", "3")
TWO_NODES = ("--simulate-nodes", "2", "--nproc-per-node", "2")


def skip(seam, why):
    print(f"skipped: {seam}: {why}")
    sys.exit(77)


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
                          **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


class Seams:
    def __init__(self, source, dlaunch, library, include, python, folder):
        self.source = source
        self.dlaunch = dlaunch
        self.where = os.path.dirname(library)
        self.include = include
        self.python = python
        self.program = os.path.join(folder, "program")

    def compile(self, *options, compiler="c++"):
        run([compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-I" + EXAMPLES, "-I" + self.include, self.source,
             "-o", self.program, "-L" + self.where, "-Wl,-rpath," + self.where, *options])

    def run_jobs(self):
        for options in (ONE_NODE, TWO_NODES):
            run([self.dlaunch, *options, "--", self.program])

    def raft(self):
        """RAFT's communicator, with the headers of PyPI's libraft-cu12, and of any CUDA."""
        places = subprocess.run([self.python, "-c", "import site; print(*site.getsitepackages(), sep='\\n')"],
                                stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
        raft = [os.path.join(place, "libraft", "include") for place in places]
        raft = [folder for folder in raft if os.path.exists(os.path.join(folder, "raft", "core", "comms.hpp"))]
        cuda = ["/usr/local/cuda/include", "/usr/include", "/usr/local/include",
                *(os.path.join(place, "nvidia", part, "include") for place in places for part in ("cu13", "cuda_runtime"))]
        cuda = [folder for folder in cuda if os.path.exists(os.path.join(folder, "cuda_runtime.h"))]
        if not raft:
            skip("raft", f"{self.python} has no RAFT (pip install --no-deps libraft-cu12)")
        if not cuda:
            skip("raft", "there is no cuda_runtime.h (pip install nvidia-cuda-runtime)")
        self.compile("-isystem", raft[0], "-idirafter", cuda[0], "-lcohort_c")
        self.run_jobs()

    def kokkos(self):
        """Kokkos views, with Debian's Kokkos, which is Trilinos'."""
        if not os.path.exists("/usr/include/trilinos/Kokkos_Core.hpp"):
            skip("kokkos", "Kokkos is not installed (libtrilinos-kokkos-dev)")
        self.compile("-isystem", "/usr/include/trilinos", "-lcohort_c",
                     "-ltrilinos_kokkoscore")
        self.run_jobs()

    def mpi(self):
        """An MPI program whose sums go by Cohort, under its own mpirun and under dlaunch."""
        headers = shutil.which("mpicxx.mpich") and subprocess.run(  # the compiler is in the package of the launcher
            ["mpicxx.mpich", "-fsyntax-only", "-x", "c++", "-"], input=b"#include <mpi.h>", stderr=subprocess.DEVNULL,
            check=False).returncode == 0
        if not headers or not shutil.which("mpirun.mpich"):
            skip("mpi", "MPICH is not installed (libmpich-dev, mpich)")
        abseil = run(["pkg-config", "--cflags", "--libs", "absl_status", "absl_statusor"]).split()
        self.compile("-lcohort_comm", *abseil, compiler="mpicxx.mpich")
        for sums in ([], ["--mpi"]):
            start = [self.program, "20", *sums]
            outputs = [run(["mpirun.mpich", "-n", "4", *start]),
                       *(run([self.dlaunch, *options, "--", *start]) for options in (("-n", "4"), TWO_NODES))]
            for output in outputs:  # on a line of 80 equal loads conjugate gradients end after 40 steps
                if f"{'MPI' if sums else 'Cohort'}: 40 iterations, residual" not in output:
                    sys.exit(f"not 40 iterations: {output}")

    def inference(self):
        """The all-reduce of tensor-parallel inference and what it is compared with: whether their sums are right."""
        run([sys.executable, os.path.join(os.path.dirname(self.source), "inference"), "--check", "--dlaunch", self.dlaunch])


def main():
    source, dlaunch, library, include, python = sys.argv[1:]
    seam = os.path.basename(source).partition("_")[0]
    with tempfile.TemporaryDirectory() as folder:
        getattr(Seams(source, dlaunch, library, include, python, folder), seam)()


if __name__ == "__main__":
    main()
