#include "cohort/trainer/compat/pt/archive.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cohort/trainer/compat/pt/error.h"

namespace cohort::trainer::pt {
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
  if (place > bytes.size() || sizeof(T) > bytes.size() - place) Refuse("it is no whole zip archive");
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

Archive::Archive(const FileBytes& file) : file_(file) {
  constexpr const char* kCut = "it is no whole zip archive: its end is missing, as of a download that broke off";
  if (file_.size() < kEndBytes) Refuse(kCut);
  const uint64_t looked = std::min(file_.size(), kEndBytes + kMostComment);
  const std::string tail = file_.At(file_.size() - looked, looked);
  const std::string signature = {'P', 'K', 5, 6};
  const size_t end = tail.rfind(signature, tail.size() - kEndBytes);
  if (end == std::string::npos) Refuse(kCut);
  uint64_t count = Number<uint16_t>(tail, end + 10), bytes = Number<uint32_t>(tail, end + 12);
  uint64_t offset = Number<uint32_t>(tail, end + 16);
  if (end >= kLocatorBytes && Number<uint32_t>(tail, end - kLocatorBytes) == kLocator64) {
    const std::string wide = file_.At(Number<uint64_t>(tail, end - kLocatorBytes + 8), kEnd64Bytes);
    if (Number<uint32_t>(wide, 0) != kEnd64) Refuse("its directory is damaged");
    count = Number<uint64_t>(wide, 32);
    bytes = Number<uint64_t>(wide, 40);
    offset = Number<uint64_t>(wide, 48);
  }
  if (bytes > kMostDirectory) Refuse("its directory has ", bytes, " bytes");
  ReadDirectory(file_.At(offset, bytes), count);
}

bool Archive::HasFolder(const std::string& folder) const {
  const auto found = records_.lower_bound(folder);
  return found != records_.end() && found->first.starts_with(folder);
}

void Archive::ReadDirectory(const std::string& directory, uint64_t count) {
  uint64_t place = 0;
  std::string folder;
  for (uint64_t i = 0; i < count; ++i) {
    if (Number<uint32_t>(directory, place) != kEntry) Refuse("its directory is damaged");
    const auto name_bytes = Number<uint16_t>(directory, place + 28),
               extra_bytes = Number<uint16_t>(directory, place + 30);
    const uint64_t end = place + kEntryBytes + name_bytes + extra_bytes + Number<uint16_t>(directory, place + 32);
    if (end > directory.size()) Refuse("its directory is damaged");
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
    if (!name.empty()) records_.emplace(std::move(name), record);  // else the folder itself
    place = end;
  }
}

std::string Archive::Read(const std::string& name) {
  const auto found = records_.find(name);
  if (found == records_.end()) Refuse("it has no record ", name);
  const Record& record = found->second;
  if (record.method != 0) {
    Refuse("its record ", name, " is compressed, which torch.save does not do; convert it in Python: ",
           "torch.save(torch.load(path, map_location=\"cpu\"), new_path)");
  }
  const std::string header = file_.At(record.offset, kRecordBytes);
  if (Number<uint32_t>(header, 0) != kRecord) Refuse("its record ", name, " is not where its directory says");
  const uint64_t begin = record.offset + kRecordBytes + Number<uint16_t>(header, 26) + Number<uint16_t>(header, 28);
  if (record.bytes > file_.size() - read_) Refuse("its records are larger than the file");
  read_ += record.bytes;
  std::string data = file_.At(begin, record.bytes);
  // 0 where torch.serialization.set_crc32_options(False) left it out.
  if (record.checksum != 0 && Crc32(data) != record.checksum) Refuse("its record ", name, " is damaged (CRC-32)");
  return data;
}

}  // namespace cohort::trainer::pt
