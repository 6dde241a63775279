// Files that look like programs which are linked with two libraries.
#pragma once

#include <elf.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

namespace cohort::launcher {

// The least that a dynamic linker would take: two segments, and a dynamic section of two libraries.
inline std::string MakeProgram(const std::string& first, const std::string& second) {
  constexpr uint64_t kAddress = 0x400000;
  const std::string names = std::string(1, '\0') + first + '\0' + second + '\0';
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
  const auto bytes = [](const auto& part) { return std::string(reinterpret_cast<const char*>(&part), sizeof part); };
  return bytes(header) + bytes(segments) + bytes(entries) + names;
}

}  // namespace cohort::launcher
