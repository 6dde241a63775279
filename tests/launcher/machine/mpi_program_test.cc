// Programs that are found to use MPI, and others.
#include "cohort/launcher/machine/mpi_program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/launcher/machine/elf_program.h"

namespace cohort::launcher {
namespace {

TEST(MpiProgram, FindsPythonFilesThatNameMpi4py) {
  const std::string with = ::testing::TempDir() + "with." + std::to_string(::getpid()) + ".py";
  const std::string without = ::testing::TempDir() + "without." + std::to_string(::getpid()) + ".py";
  std::ofstream(with) << "import sys\nfrom mpi4py import MPI\n";
  std::ofstream(without) << "print('hello')\n";
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", with}), MpiLibrary::kEither);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", "-c", "import mpi4py"}), MpiLibrary::kEither);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", "-m", "mpi4py.bench", "helloworld"}), MpiLibrary::kEither);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", without, "x"}), MpiLibrary::kNone);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", "/no/such/file.py", ""}), MpiLibrary::kNone);
  EXPECT_EQ(MpiLibraryOf({"/no/such/program"}), MpiLibrary::kNone);
  EXPECT_EQ(MpiLibraryOf({}), MpiLibrary::kNone);
  std::remove(with.c_str());
  std::remove(without.c_str());
}

TEST(MpiProgram, ALinkedLibraryTellsWhichMpiItIs) {
  const std::string path = ::testing::TempDir() + "linked." + std::to_string(::getpid());
  const auto library_of = [&](const std::string& library) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << MakeProgram("libc.so.6", library);
    return MpiLibraryOf({path, "mpi4py"});
  };
  for (const char* name : {"libmpich.so.12", "libmpi.so.12", "libmpifort.so.12", "libmpicxx.so.12"}) {
    EXPECT_EQ(library_of(name), MpiLibrary::kMpich) << name;
  }
  for (const char* name : {"libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempif08.so.40", "libmpi_cxx.so.40"}) {
    EXPECT_EQ(library_of(name), MpiLibrary::kOpenMpi) << name;
  }
  EXPECT_EQ(library_of("libmpi.so.1"), MpiLibrary::kEither) << "which speaks neither; its argument tells";
  std::remove(path.c_str());
}

TEST(MpiProgram, KnowsProgramsThatStartRanksThemselves) {
  for (const char* name :
       {"mpirun", "/usr/bin/mpiexec.hydra", "mpirun.openmpi", "orterun", "prterun", "/opt/bin/srun"}) {
    EXPECT_TRUE(StartsRanks(name)) << name;
  }
  for (const char* name : {"", "/usr/bin/python3", "./mpirunner", "/mpirun/program", "my.mpirun"}) {
    EXPECT_FALSE(StartsRanks(name)) << name;
  }
}

TEST(MpiProgram, FindsAProgramBehindAWrapper) {
  const std::string base = ::testing::TempDir() + "wrapped." + std::to_string(::getpid());
  const std::string script = base + ".sh", other = base + ".run";
  std::ofstream(base, std::ios::binary | std::ios::trunc) << MakeProgram("libc.so.6", "libmpi.so.40");
  std::ofstream(script) << "#!/bin/bash\nulimit -c 0\nexec '" << base << "' \"$@\"\n";
  std::ofstream(other) << "#!/usr/bin/python3\n# " << base << "\n";
  for (const std::string& text : {base, "exec " + base + " -v", "A=1;" + base + ">/dev/null", "(\"" + base + "\")"}) {
    EXPECT_EQ(MpiLibraryOf({"/bin/sh", "-c", text}), MpiLibrary::kEither) << text;
  }
  EXPECT_EQ(MpiLibraryOf({"/usr/bin/env", "A=1", base}), MpiLibrary::kEither);
  EXPECT_EQ(MpiLibraryOf({script}), MpiLibrary::kEither);
  EXPECT_EQ(MpiLibraryOf({"/bin/bash", script}), MpiLibrary::kEither);
  EXPECT_EQ(MpiLibraryOf({other}), MpiLibrary::kNone) << "no shell reads it";
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", "-c", "mpirun -n 2 " + base}), MpiLibrary::kNone) << "it has a job of its own";
  EXPECT_EQ(MpiLibraryOf({"/usr/bin/mpiexec.hydra", "-n", "2", base}), MpiLibrary::kNone);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", "-c", base + ".no_such_file /bin /dev/null"}), MpiLibrary::kNone);
  for (const std::string& path : {base, script, other}) std::remove(path.c_str());
}

TEST(MpiProgram, PassesOverPipes) {
  const std::string pipe = ::testing::TempDir() + "pipe." + std::to_string(::getpid()) + ".py";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", pipe}), MpiLibrary::kNone) << "and waits for no writer";
  std::remove(pipe.c_str());
}

TEST(MpiProgram, FindsNothingInTheNamesOfFolders) {
  EXPECT_EQ(MpiLibraryOf({"/opt/mpi4py-demo/hello"}), MpiLibrary::kNone);
  EXPECT_EQ(MpiLibraryOf({"/opt/mpi4py/hello", "--data", "/data/mpi4py-demo/x"}), MpiLibrary::kNone);
  EXPECT_EQ(MpiLibraryOf({"/bin/sh", "/opt/mpi4py/no_such_file.py", "my_mpi4py"}), MpiLibrary::kNone);
}

}  // namespace
}  // namespace cohort::launcher
