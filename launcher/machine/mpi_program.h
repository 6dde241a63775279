// Whether a program looks as if it used an MPI library that speaks PMI-1: MPICH, Intel MPI and their family.
#pragma once

#include <string>
#include <vector>

namespace cohort::launcher {

// The program at `path` is linked with such a library, or one of `arguments` is mpi4py or a Python file that names it.
// Reads a few pages of the program, and at most 1 MiB of each file that ends in .py. A program that loads its library
// later is not found: --mpi pmi1 is for those.
bool LooksLikeMpi(const std::string& path, const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
