#include "cohort/trainer/state/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/whole_file.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/torch_compat.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Checkpoints have it; safetensors files of others have no name for it.
constexpr const char* kOwnType = "C128";
constexpr std::array<std::pair<at::ScalarType, const char*>, 12> kTypes = {{{at::kDouble, "F64"},
                                                                            {at::kFloat, "F32"},
                                                                            {at::kHalf, "F16"},
                                                                            {at::kBFloat16, "BF16"},
                                                                            {at::kLong, "I64"},
                                                                            {at::kInt, "I32"},
                                                                            {at::kShort, "I16"},
                                                                            {at::kChar, "I8"},
                                                                            {at::kByte, "U8"},
                                                                            {at::kBool, "BOOL"},
                                                                            {at::kComplexFloat, "C64"},
                                                                            {at::kComplexDouble, kOwnType}}};

[[noreturn]] void ThrowSystemError(const std::string& what, const std::string& path, int error) {
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  if (error == ENOSPC || error == EDQUOT) code = absl::StatusCode::kResourceExhausted;
  if (error == ENOENT) code = absl::StatusCode::kNotFound;
  if (error == EACCES || error == EPERM || error == EROFS) code = absl::StatusCode::kPermissionDenied;
  throw DistributedError(code, "can't " + what + " " + path + ": " + std::strerror(error));
}

[[noreturn]] void ThrowDamaged(const std::string& path, const std::string& why) {
  throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + why);
}

// A bad sector or a lost stripe is damage: another checkpoint may have none.
[[noreturn]] void ThrowUnreadable(const std::string& what, const std::string& path, int error) {
  if (error == EIO) ThrowDamaged(path, std::string("it can't be read: ") + std::strerror(error));
  ThrowSystemError(what, path, error);
}

// To read. A pipe or a device instead of the file would keep us waiting or never end.
int OpenOrdinaryFile(const std::string& path, struct stat& facts) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) ThrowUnreadable("open", path, errno);
  if (::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode)) return fd;
  ::close(fd);
  ThrowDamaged(path, "it is no ordinary file");
}

// Reads the `bytes` bytes from `offset` on.
void ReadInto(char* data, int fd, const std::string& path, int64_t offset, int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd, data + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowUnreadable("read", path, errno);
    if (got == 0) ThrowDamaged(path, "it ends before byte " + std::to_string(offset + bytes));
    done += got;
  }
}

// The same, as a string or a vector.
template <typename Bytes>
Bytes ReadBytes(int fd, const std::string& path, int64_t offset, int64_t bytes) {
  Bytes data(static_cast<size_t>(bytes), '\0');
  ReadInto(data.data(), fd, path, offset, bytes);
  return data;
}

}  // namespace

nlohmann::json JsonOf(const std::vector<CheckedCut>& cuts) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [grid, checksums] : cuts) {
    all.push_back({{"tile", {grid.tile_rows, grid.tile_columns}}, {"checksums", checksums}});
  }
  return all;
}

std::string SafetensorsType(at::ScalarType type) {
  for (const auto& [known, name] : kTypes) {
    if (known == type) return name;
  }
  for (const auto& [known, name] : compat::kNewerTypes) {
    if (known == type) return name;
  }
  TORCH_CHECK(false, "a tensor of type ", type, " can't be kept in a checkpoint");
}

std::optional<at::ScalarType> FindSafetensorsType(const std::string& name) {
  for (const auto& [known, text] : kTypes) {
    if (name == text) return known;
  }
  for (const auto& [known, text] : compat::kNewerTypes) {
    if (name == text) return known;
  }
  return std::nullopt;
}

at::ScalarType TypeOfSafetensors(const std::string& name) {
  const auto type = FindSafetensorsType(name);
  TORCH_CHECK(type.has_value(), "a checkpoint has a tensor of unknown type ", name);
  return *type;
}

std::string Sha256(const void* data, size_t bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  TORCH_CHECK(EVP_Digest(data, bytes, digest, &length, EVP_sha256(), nullptr) == 1, "OpenSSL computes no SHA-256");
  std::string text;
  for (unsigned int i = 0; i < length; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4];
    text += "0123456789abcdef"[digest[i] & 15];
  }
  return text;
}

WrittenFile WriteTensors(const std::string& path, std::vector<FilePiece>& pieces, FilePlace place,
                         const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const FilePiece& piece : pieces) {
    const int64_t bytes = static_cast<int64_t>(piece.data.nbytes());
    header[piece.key] = {{"dtype", SafetensorsType(piece.data.scalar_type())},
                         {"shape", piece.shape},
                         {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the format wants the data aligned
  const uint64_t length = text.size();
  std::string head(sizeof length, '\0');
  for (size_t i = 0; i < sizeof length; ++i) head[i] = static_cast<char>(length >> (8 * i));
  head += text;

  int64_t offset = static_cast<int64_t>(head.size());
  size_t next = 0;
  bool at_head = true;
  const auto source = [&]() -> absl::StatusOr<std::string_view> {
    if (std::exchange(at_head, false)) return std::string_view(head);
    while (next < pieces.size()) {
      FilePiece& piece = pieces[next++];
      const size_t bytes = piece.data.nbytes();
      piece.offset = offset;
      const auto element_size = static_cast<int64_t>(piece.data.element_size());
      const auto* data = static_cast<const char*>(piece.data.data_ptr());
      for (const TileGrid& grid : CutsOf(piece.shape, piece.whole.empty() ? piece.shape : piece.whole, element_size)) {
        piece.cuts.push_back({.grid = grid, .checksums = TileChecksums(grid, AllTiles(grid), data, element_size)});
      }
      offset += static_cast<int64_t>(bytes);
      // An empty text would be the end.
      if (bytes > 0) return std::string_view(static_cast<const char*>(piece.data.data_ptr()), bytes);
    }
    return std::string_view();
  };
  const absl::Status status = place == FilePlace::kAlone ? runtime::WriteWholeFile(path, source, {.durable = true})
                                                         : runtime::WriteNewFile(path, source);
  if (!status.ok()) throw DistributedError(status.code(), std::string(status.message()));
  return {.bytes = offset,
          .header_bytes = static_cast<int64_t>(head.size()),
          .header_checksum = Sha256(head.data(), head.size())};
}

std::string ReadText(const std::string& path) {
  struct stat facts{};
  const int fd = OpenOrdinaryFile(path, facts);
  try {
    std::string text = ReadBytes<std::string>(fd, path, 0, facts.st_size);
    ::close(fd);
    return text;
  } catch (...) {
    ::close(fd);
    throw;
  }
}

TensorFileReader::TensorFileReader(std::string path, const WrittenFile& expected) : path_(std::move(path)) {
  struct stat facts{};
  fd_ = OpenOrdinaryFile(path_, facts);
  try {
    if (facts.st_size != expected.bytes) {
      ThrowDamaged(path_, "it has " + std::to_string(facts.st_size) + " bytes, and " + std::to_string(expected.bytes) +
                              " were written");
    }
    const auto header = ReadBytes<std::vector<char>>(fd_, path_, 0, expected.header_bytes);
    if (Sha256(header.data(), header.size()) != expected.header_checksum) {
      ThrowDamaged(
          path_, "bytes 0 to " + std::to_string(expected.header_bytes) + " are not those that were written (SHA-256)");
    }
  } catch (...) {
    ::close(fd_);  // no destructor follows
    throw;
  }
}

TensorFileReader::~TensorFileReader() { ::close(fd_); }

std::vector<char> TensorFileReader::ReadTiles(int64_t offset, const CheckedCut& cut, const TileRange& range,
                                              int64_t element_size) {
  const TileGrid& tiles = cut.grid;
  const int64_t top = range.first_row * tiles.tile_rows, left = range.first_column * tiles.tile_columns;
  const int64_t rows = std::min(range.last_row * tiles.tile_rows, tiles.rows) - top;
  const int64_t columns = std::min(range.last_column * tiles.tile_columns, tiles.columns) - left;
  std::vector<char> data(static_cast<size_t>(rows * columns * element_size));
  const auto place = [&](int64_t row) { return offset + ((top + row) * tiles.columns + left) * element_size; };
  if (columns == tiles.columns) {
    ReadInto(data.data(), fd_, path_, place(0), static_cast<int64_t>(data.size()));
  } else {
    const int64_t row_bytes = columns * element_size;
    for (int64_t row = 0; row < rows; ++row) {
      ReadInto(data.data() + row * row_bytes, fd_, path_, place(row), row_bytes);
    }
  }
  const std::string found = TileChecksums(tiles, range, data.data(), element_size);
  const int64_t across = range.last_column - range.first_column;
  for (int64_t row = range.first_row; row < range.last_row; ++row) {
    const int64_t first = row * tiles.column_tiles() + range.first_column;
    const int64_t at = (row - range.first_row) * across * kTileChecksumSize, count = across * kTileChecksumSize;
    if (cut.checksums.compare(static_cast<size_t>(first * kTileChecksumSize), static_cast<size_t>(count), found,
                              static_cast<size_t>(at), static_cast<size_t>(count)) == 0) {
      continue;
    }
    ThrowDamaged(path_, "bytes from " + std::to_string(place(0)) + " to " + std::to_string(place(rows)) +
                            " are not those that were written (SHA-256)");
  }
  return data;
}

}  // namespace cohort::trainer
