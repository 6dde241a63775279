// Programs that are found to use MPI, and others.
#include "cohort/launcher/machine/mpi_program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace cohort::launcher {
namespace {

TEST(MpiProgram, FindsPythonFilesThatNameMpi4py) {
  const std::string with = ::testing::TempDir() + "with." + std::to_string(::getpid()) + ".py";
  const std::string without = ::testing::TempDir() + "without." + std::to_string(::getpid()) + ".py";
  std::ofstream(with) << "import sys\nfrom mpi4py import MPI\n";
  std::ofstream(without) << "print('hello')\n";
  EXPECT_TRUE(LooksLikeMpi("/bin/sh", {with}));
  EXPECT_TRUE(LooksLikeMpi("/bin/sh", {"-c", "import mpi4py"}));
  EXPECT_FALSE(LooksLikeMpi("/bin/sh", {without, "x"}));
  EXPECT_FALSE(LooksLikeMpi("/bin/sh", {"/no/such/file.py", ""}));
  EXPECT_FALSE(LooksLikeMpi("/no/such/program", {}));
  std::remove(with.c_str());
  std::remove(without.c_str());
}

}  // namespace
}  // namespace cohort::launcher
