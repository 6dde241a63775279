#include "cohort/runtime/perfetto/compressed.h"

#include <algorithm>
#include <cstring>

#include "google/protobuf/io/gzip_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace cohort::runtime {
namespace {

using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::GzipInputStream;
using google::protobuf::io::GzipOutputStream;
using google::protobuf::io::StringOutputStream;

}  // namespace

std::string Compress(const std::string& bytes) {
  std::string compressed;
  StringOutputStream target(&compressed);
  GzipOutputStream::Options options;
  options.format = GzipOutputStream::ZLIB;
  options.compression_level = 1;
  GzipOutputStream stream(&target, options);
  size_t copied = 0;
  while (copied < bytes.size()) {
    void* room = nullptr;
    int size = 0;
    if (!stream.Next(&room, &size)) break;  // never: a string takes everything
    const size_t part = std::min(static_cast<size_t>(size), bytes.size() - copied);
    std::memcpy(room, bytes.data() + copied, part);
    copied += part;
    if (part < static_cast<size_t>(size)) stream.BackUp(size - static_cast<int>(part));
  }
  stream.Close();
  return compressed;
}

std::optional<std::string> Uncompress(const std::string& compressed, size_t most) {
  ArrayInputStream source(compressed.data(), static_cast<int>(compressed.size()));
  GzipInputStream stream(&source, GzipInputStream::ZLIB);
  std::string bytes;
  const void* part = nullptr;
  for (int size = 0; stream.Next(&part, &size);) {
    if (bytes.size() + static_cast<size_t>(size) > most) return std::nullopt;
    bytes.append(static_cast<const char*>(part), static_cast<size_t>(size));
  }
  if (stream.ZlibErrorCode() < 0) return std::nullopt;
  return bytes;
}

}  // namespace cohort::runtime
