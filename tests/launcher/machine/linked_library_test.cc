// Which shared libraries a file asks for, be it a program or something that only looks like one.
#include "cohort/launcher/machine/linked_library.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

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

// The least that a dynamic linker would take: two segments, and a dynamic section of two libraries.
string MakeProgram(const string& first, const string& second) {
  constexpr uint64_t kAddress = 0x400000;
  const string names = string(1, '\0') + first + '\0' + second + '\0';
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  std::array<Elf64_Phdr, 2> segments{};
  std::array<Elf64_Dyn, 4> entries{};
  const uint64_t dynamic = sizeof header + sizeof segments;
  const uint64_t table = dynamic + sizeof entries;
  segments[0].p_type = PT_LOAD;
  segments[0].p_vaddr = kAddress;
  segments[0].p_filesz = table + names.size();
  segments[1].p_type = PT_DYNAMIC;
  segments[1].p_offset = dynamic;
  segments[1].p_filesz = sizeof entries;
  entries[0] = {.d_tag = DT_NEEDED, .d_un = {.d_val = 1}};
  entries[1] = {.d_tag = DT_NEEDED, .d_un = {.d_val = 2 + first.size()}};
  entries[2] = {.d_tag = DT_STRTAB, .d_un = {.d_ptr = kAddress + table}};
  const auto bytes = [](const auto& part) { return string(reinterpret_cast<const char*>(&part), sizeof part); };
  return bytes(header) + bytes(segments) + bytes(entries) + names;
}

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
