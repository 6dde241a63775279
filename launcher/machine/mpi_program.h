// Which MPI library a program looks as if it used.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

enum class MpiLibrary {
  kNone,
  kMpich,    // and its family: MPICH, Intel MPI. They speak PMI-1
  kOpenMpi,  // 3 and newer. It speaks PMIx
  kEither,   // by mpi4py, or behind a wrapper
};

// Whether the path or name is that of a program that starts ranks itself: mpirun, mpiexec.hydra, srun and their like.
// They would find each other by the ways of the job that they are started in.
bool StartsRanks(const std::string& program);

// The program, which is the path `command[0]`, is linked with such a library, or one of its arguments has mpi4py as a
// word (not in a path), is a Python file that names it, or names the path of a linked program, as in sh -c './program'
// and in a shell's script. Reads a few pages of each program, at most 1 MiB of each file that ends in .py and 64 KiB of
// a script. A program that loads its library later is not found: --mpi pmi1 and --mpi pmix are for those.
MpiLibrary MpiLibraryOf(const std::vector<std::string>& command);

}  // namespace cohort::launcher
