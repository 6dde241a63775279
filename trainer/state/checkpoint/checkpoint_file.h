// Files of a checkpoint: safetensors, written once and read in pieces.
//
//   u64 length of the header | header, JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...} | data
//
// Format: https://huggingface.co/docs/safetensors (offsets count from the end of the header). The files are plain
// safetensors; checksums are kept in the checkpoint's index.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/state/checkpoint/checkpoint_tiles.h"
#include "nlohmann/json_fwd.hpp"

namespace cohort::trainer {

// Says which elements of which tensor lie where.
inline constexpr const char* kCheckpointIndex = "index.json";

// One tensor of a file.
struct FilePiece {
  std::string key;  // in the file's header
  std::vector<int64_t> shape;
  std::vector<int64_t> whole = {};  // sizes of the tensor that it is a part of; empty: it is all of it
  at::Tensor data;                  // on the CPU, contiguous
  // The place of its bytes in the file, and its checksums. WriteTensors sets them.
  int64_t offset = 0;
  std::vector<CheckedCut> cuts = {};
};

struct WrittenFile {
  int64_t bytes = 0;
  int64_t header_bytes = 0;     // with the length
  std::string header_checksum;  // of these
};

// "F32", "BF16", ...; throws c10::Error for types that the format has not.
std::string SafetensorsType(at::ScalarType type);
at::ScalarType TypeOfSafetensors(const std::string& name);
// The same without an exception: none for an unknown name.
std::optional<at::ScalarType> FindSafetensorsType(const std::string& name);

enum class FilePlace {
  kInPartialFolder,  // a new file, complete when its folder is published
  kAlone,            // published by itself, in the place of a file that is there
};
// Writes a file that survives a power failure. `metadata` goes into the header as "__metadata__". Throws
// DistributedError with the system's error, which names the file and the cause.
WrittenFile WriteTensors(const std::string& path, std::vector<FilePiece>& pieces, FilePlace place,
                         const std::map<std::string, std::string>& metadata = {});

// The whole of a small file. Throws DistributedError: kDataLoss where it is no ordinary one.
std::string ReadText(const std::string& path);

// The cuts of a piece as index.json has them.
nlohmann::json JsonOf(const std::vector<CheckedCut>& cuts);

std::string Sha256(const void* data, size_t bytes);

// Reads a checkpoint's file piece by piece. Throws DistributedError kDataLoss, which names the file and what is wrong,
// when size or header are not those that were written.
class TensorFileReader {
 public:
  TensorFileReader(std::string path, const WrittenFile& expected);
  ~TensorFileReader();
  TensorFileReader(const TensorFileReader&) = delete;
  TensorFileReader& operator=(const TensorFileReader&) = delete;

  // The elements of some tiles of a piece that begins at `offset`, row by row.
  std::vector<char> ReadTiles(int64_t offset, const CheckedCut& cut, const TileRange& range, int64_t element_size);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace cohort::trainer
