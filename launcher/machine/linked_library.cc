#include "cohort/launcher/machine/linked_library.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

// Above what linkers make of any program; what a file claims beyond is not read.
constexpr size_t kMostSegments = 256;
constexpr size_t kMostEntries = 4096;
constexpr size_t kMostNameBytes = 256;

// Everything is a number that the file claims: what lies outside of it is absent.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}

  // False where the file has not so much there.
  bool Read(uint64_t offset, void* out, size_t bytes) const {
    if (!fd_.valid() || offset > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - bytes) return false;
    return ::pread(fd_.get(), out, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  }

  // As many entries as the file has there, `most` at the most.
  template <typename Entry>
  std::vector<Entry> ReadAll(uint64_t offset, size_t most) const {
    std::vector<Entry> entries;
    for (Entry entry; entries.size() < most && Read(offset + entries.size() * sizeof entry, &entry, sizeof entry);) {
      entries.push_back(entry);
    }
    return entries;
  }

  // The text that ends with a zero there, cut.
  std::string ReadName(uint64_t offset) const {
    std::string name;
    for (char c = 0; name.size() < kMostNameBytes && Read(offset + name.size(), &c, 1) && c != '\0';) name += c;
    return name;
  }

 private:
  runtime::FileDescriptor fd_;
};

std::optional<uint64_t> OffsetOf(const std::vector<Elf64_Phdr>& segments, uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr || address - segment.p_vaddr >= segment.p_filesz) {
      continue;
    }
    return address - segment.p_vaddr + segment.p_offset;
  }
  return std::nullopt;
}

}  // namespace

std::string FindNeededLibrary(const std::string& path, const std::vector<std::string_view>& beginnings) {
  const ElfFile file(path);
  constexpr unsigned char kByteOrder = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  Elf64_Ehdr header;
  if (!file.Read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kByteOrder ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMostSegments) {
    return "";
  }
  const auto segments = file.ReadAll<Elf64_Phdr>(header.e_phoff, header.e_phnum);
  std::vector<Elf64_Dyn> entries;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_DYNAMIC) entries = file.ReadAll<Elf64_Dyn>(segment.p_offset, kMostEntries);
  }
  std::optional<uint64_t> names;
  std::vector<uint64_t> needed;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_STRTAB) names = OffsetOf(segments, entry.d_un.d_ptr);
    if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
  }
  for (const uint64_t at : needed) {
    const std::string name = names ? file.ReadName(*names + at) : "";
    for (const std::string_view beginning : beginnings) {
      if (name.starts_with(beginning)) return name;
    }
  }
  return "";
}

}  // namespace cohort::launcher
