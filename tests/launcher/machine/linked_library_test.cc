// Which shared libraries a file asks for, be it a program or something that only looks like one.
#include "cohort/launcher/machine/linked_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "tests/launcher/machine/elf_program.h"

namespace cohort::launcher {
namespace {

using std::string;

const std::vector<std::string_view> kMpi = {"libmpi.so", "libmpich.so"};

class LinkedLibrary : public testing::Test {
 protected:
  LinkedLibrary() : path_(testing::TempDir() + "linked-library-" + std::to_string(::getpid())) {}
  ~LinkedLibrary() override { ::unlink(path_.c_str()); }

  string Found(const string& content) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
    return FindNeededLibrary(path_, kMpi);
  }

  const string path_;
};

TEST_F(LinkedLibrary, ALibraryIsFoundByTheBeginningOfItsName) {
  EXPECT_EQ(Found(MakeProgram("libc.so.6", "libmpi.so.40")), "libmpi.so.40");
  EXPECT_EQ(Found(MakeProgram("libmpich.so.12", "libc.so.6")), "libmpich.so.12");
  EXPECT_EQ(Found(MakeProgram("libm.so.6", "libc.so.6")), "");
  EXPECT_EQ(FindNeededLibrary("/proc/self/exe", {"libc.so"}).substr(0, 7), "libc.so");
}

TEST_F(LinkedLibrary, FilesThatAreNoProgramHaveNoLibrary) {
  EXPECT_EQ(FindNeededLibrary("/nowhere", kMpi), "");
  EXPECT_EQ(FindNeededLibrary("/dev/zero", kMpi), "");
  EXPECT_EQ(FindNeededLibrary("/tmp", kMpi), "");
  EXPECT_EQ(Found(""), "");
  EXPECT_EQ(Found("#!/bin/sh\nlibmpi.so\n"), "");
}

// Each claim of the file may be any number; there is nothing to be believed, and nothing to fall over.
TEST_F(LinkedLibrary, DamagedProgramsDoNoHarm) {
  const string whole = MakeProgram("libc.so.6", "libmpi.so.40");
  for (size_t size = 0; size < whole.size(); ++size) Found(whole.substr(0, size));
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    string damaged = whole;
    for (int i = 0; i < 3; ++i)
      damaged[random() % damaged.size()] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
    const string found = Found(damaged);
    EXPECT_LE(found.size(), 256u);
  }
}

}  // namespace
}  // namespace cohort::launcher
