#include "cohort/launcher/agent/stacks/loaded_symbols.h"

#include <elf.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace cohort::launcher {
namespace {

// Above what linkers make of any program; what it claims beyond is not read.
constexpr size_t kMostSegments = 256;
constexpr uint64_t kMostEntries = 4096;
constexpr uint32_t kMostInBucket = 4096;

// Places of a file's dynamic symbols.
struct Tables {
  uint64_t shift = 0;  // from the addresses for which it was linked to those where it lies
  uint64_t symbols = 0, names = 0, hash = 0;
};

std::optional<Tables> FindTables(const ProcessMemory& memory, uint64_t begin) {
  const auto header = memory.Get<Elf64_Ehdr>(begin);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum > kMostSegments) {
    return std::nullopt;
  }
  Tables tables;
  std::optional<uint64_t> first, dynamic;
  for (size_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = memory.Get<Elf64_Phdr>(begin + header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) return std::nullopt;
    if (segment->p_type == PT_LOAD && !first) first = segment->p_vaddr - segment->p_offset;
    if (segment->p_type == PT_DYNAMIC) dynamic = segment->p_vaddr;
  }
  if (!first || !dynamic) return std::nullopt;
  tables.shift = begin - *first;
  for (uint64_t i = 0; i < kMostEntries; ++i) {
    const auto entry = memory.Get<Elf64_Dyn>(*dynamic + tables.shift + i * sizeof(Elf64_Dyn));
    if (!entry) return std::nullopt;
    if (entry->d_tag == DT_NULL) break;
    // Some loaders write the final addresses there.
    const uint64_t address = entry->d_un.d_ptr < begin ? entry->d_un.d_ptr + tables.shift : entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) tables.symbols = address;
    if (entry->d_tag == DT_STRTAB) tables.names = address;
    if (entry->d_tag == DT_GNU_HASH) tables.hash = address;
  }
  if (tables.symbols == 0 || tables.names == 0 || tables.hash == 0) return std::nullopt;
  return tables;
}

bool IsNamed(const ProcessMemory& memory, uint64_t at, const std::string& name) {
  std::string found(name.size() + 1, 'x');
  return memory.Read(at, found.data(), found.size()) && found.back() == '\0' && found.starts_with(name);
}

// The hash function of DT_GNU_HASH.
uint32_t HashOf(const std::string& name) {
  uint32_t hash = 5381;
  for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
  return hash;
}

}  // namespace

std::optional<uint64_t> FindLoadedSymbol(const ProcessMemory& memory, uint64_t begin, const std::string& name) {
  const std::optional<Tables> tables = FindTables(memory, begin);
  if (!tables) return std::nullopt;
  // The number of buckets, the first symbol that is in one, words of the filter, its shift; then filter, buckets,
  // chains.
  const auto head = memory.Get<std::array<uint32_t, 4>>(tables->hash);
  if (!head || (*head)[0] == 0) return std::nullopt;
  const uint64_t buckets = tables->hash + sizeof *head + uint64_t{(*head)[2]} * sizeof(uint64_t);
  const uint64_t chains = buckets + uint64_t{(*head)[0]} * sizeof(uint32_t);
  const uint32_t hash = HashOf(name);
  const auto bucket = memory.Get<uint32_t>(buckets + uint64_t{hash % (*head)[0]} * sizeof(uint32_t));
  if (!bucket || *bucket < (*head)[1]) return std::nullopt;
  for (uint32_t i = *bucket; i - *bucket < kMostInBucket; ++i) {
    const auto link = memory.Get<uint32_t>(chains + uint64_t{i - (*head)[1]} * sizeof(uint32_t));
    if (!link) return std::nullopt;
    if ((*link | 1) == (hash | 1)) {
      const auto symbol = memory.Get<Elf64_Sym>(tables->symbols + uint64_t{i} * sizeof(Elf64_Sym));
      if (!symbol) return std::nullopt;
      if (symbol->st_value != 0 && IsNamed(memory, tables->names + symbol->st_name, name)) {
        return symbol->st_value + tables->shift;
      }
    }
    if ((*link & 1) != 0) break;  // the last of the bucket
  }
  return std::nullopt;
}

}  // namespace cohort::launcher
