#include "cohort/trainer/compat/pt_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "c10/util/Exception.h"

namespace cohort::trainer {
namespace {

// From the zip format (APPNOTE.TXT 4.3): signatures and lengths of headers, and the value for "see the 64-bit field".
constexpr uint32_t kRecord = 0x04034b50, kEntry = 0x02014b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kRecordBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kElsewhere = 0xffffffff;
constexpr uint64_t kMostComment = 0xffff;
// A large model has some tens of thousands of tensors, and a hundred bytes of directory for each.
constexpr uint64_t kMostDirectory = uint64_t{1} << 30;

template <typename T>
T Number(const std::string& bytes, uint64_t place) {  // little-endian, as this machine
  TORCH_CHECK(place <= bytes.size() && sizeof(T) <= bytes.size() - place, "it is no whole zip archive");
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

uint32_t Crc32(const std::string& data) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ ((table[i] & 1) != 0 ? 0xedb88320 : 0);
    }
    return table;
  }();
  uint32_t sum = 0xffffffff;
  for (const char byte : data) sum = kTable[(sum ^ static_cast<uint8_t>(byte)) & 0xff] ^ (sum >> 8);
  return ~sum;
}

// Takes the next 64-bit field of an entry's extra field 1 for a number that did not fit.
void Widen(uint64_t& value, const std::string& fields, uint64_t& place) {
  if (value != kElsewhere) return;
  value = Number<uint64_t>(fields, place);
  place += sizeof(uint64_t);
}

// The contents of the extra field of that kind, or nothing.
std::string ExtraField(const std::string& extra, uint16_t kind) {
  for (uint64_t place = 0; place + 4 <= extra.size();) {
    const auto bytes = Number<uint16_t>(extra, place + 2);
    if (Number<uint16_t>(extra, place) == kind) return extra.substr(place + 4, bytes);
    place += uint64_t{4} + bytes;
  }
  return "";
}

}  // namespace

PtArchive::PtArchive(const std::string& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  TORCH_CHECK(fd_ >= 0, std::strerror(errno));
  try {
    struct stat facts{};
    TORCH_CHECK(::fstat(fd_, &facts) == 0 && S_ISREG(facts.st_mode), "it is no ordinary file");
    size_ = static_cast<uint64_t>(facts.st_size);
    TORCH_CHECK(size_ >= kEndBytes, "it is no zip archive, as torch.save writes them since PyTorch 1.6");
    const std::string tail =
        At(size_ - std::min(size_, kEndBytes + kMostComment), std::min(size_, kEndBytes + kMostComment));
    const std::string signature = {'P', 'K', 5, 6};
    const size_t end = tail.rfind(signature, tail.size() - kEndBytes);
    TORCH_CHECK(end != std::string::npos, "it is no zip archive, as torch.save writes them since PyTorch 1.6");
    uint64_t count = Number<uint16_t>(tail, end + 10), bytes = Number<uint32_t>(tail, end + 12);
    uint64_t offset = Number<uint32_t>(tail, end + 16);
    if (end >= kLocatorBytes && Number<uint32_t>(tail, end - kLocatorBytes) == kLocator64) {
      const std::string wide = At(Number<uint64_t>(tail, end - kLocatorBytes + 8), kEnd64Bytes);
      TORCH_CHECK(Number<uint32_t>(wide, 0) == kEnd64, "its directory is damaged");
      count = Number<uint64_t>(wide, 32);
      bytes = Number<uint64_t>(wide, 40);
      offset = Number<uint64_t>(wide, 48);
    }
    TORCH_CHECK(bytes <= kMostDirectory, "its directory has ", bytes, " bytes");
    ReadDirectory(At(offset, bytes), count);
  } catch (...) {
    ::close(fd_);  // no destructor follows
    throw;
  }
}

PtArchive::~PtArchive() { ::close(fd_); }

// Only what is there, so that no number of the file's is an amount of memory.
std::string PtArchive::At(uint64_t offset, uint64_t bytes) const {
  TORCH_CHECK(offset <= size_ && bytes <= size_ - offset, "it ends before byte ", offset, " + ", bytes);
  std::string data(bytes, '\0');
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd_, data.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got > 0, "it can't be read: ", got < 0 ? std::strerror(errno) : "it has become shorter");
    done += static_cast<uint64_t>(got);
  }
  return data;
}

void PtArchive::ReadDirectory(const std::string& directory, uint64_t count) {
  uint64_t place = 0;
  std::string folder;
  for (uint64_t i = 0; i < count; ++i) {
    TORCH_CHECK(Number<uint32_t>(directory, place) == kEntry, "its directory is damaged");
    const auto name_bytes = Number<uint16_t>(directory, place + 28),
               extra_bytes = Number<uint16_t>(directory, place + 30);
    const uint64_t end = place + kEntryBytes + name_bytes + extra_bytes + Number<uint16_t>(directory, place + 32);
    TORCH_CHECK(end <= directory.size(), "its directory is damaged");
    std::string name = directory.substr(place + kEntryBytes, name_bytes);
    if (i == 0) folder = name.substr(0, name.find('/') + 1);
    if (name.compare(0, folder.size(), folder) == 0) name.erase(0, folder.size());
    Record record = {.offset = Number<uint32_t>(directory, place + 42),
                     .bytes = Number<uint32_t>(directory, place + 24),
                     .checksum = Number<uint32_t>(directory, place + 16),
                     .method = Number<uint16_t>(directory, place + 10)};
    const std::string wide = ExtraField(directory.substr(place + kEntryBytes + name_bytes, extra_bytes), 1);
    uint64_t field = 0, stored = Number<uint32_t>(directory, place + 20);
    Widen(record.bytes, wide, field);
    Widen(stored, wide, field);
    Widen(record.offset, wide, field);
    records_.emplace(std::move(name), record);
    place = end;
  }
}

std::string PtArchive::Read(const std::string& name) {
  const auto found = records_.find(name);
  TORCH_CHECK(found != records_.end(), "it has no record ", name);
  const Record& record = found->second;
  TORCH_CHECK(record.method == 0, "its record ", name, " is compressed, which torch.save does not do");
  const std::string header = At(record.offset, kRecordBytes);
  TORCH_CHECK(Number<uint32_t>(header, 0) == kRecord, "its record ", name, " is not where its directory says");
  const uint64_t begin = record.offset + kRecordBytes + Number<uint16_t>(header, 26) + Number<uint16_t>(header, 28);
  TORCH_CHECK(record.bytes <= size_ - read_, "its records are larger than the file");
  read_ += record.bytes;
  std::string data = At(begin, record.bytes);
  TORCH_CHECK(Crc32(data) == record.checksum, "its record ", name, " is damaged (CRC-32)");
  return data;
}

}  // namespace cohort::trainer
