#include "cohort/trainer/state/checkpoint/checkpoint_index.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "c10/util/accumulate.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_text.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_directory.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "nlohmann/json.hpp"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;
using Piece = CheckpointIndex::Piece;
using Tensor = CheckpointIndex::Tensor;
namespace fs = std::filesystem;

constexpr const char* kFormat = "cohort-checkpoint-3";

// The path that the index is read from. Tensors without an index are left by a copy that was cut short or a mistaken
// rm.
std::string IndexPath(const std::string& directory) {
  const std::string place = ReadablePath(directory), path = place + "/" + kCheckpointIndex;
  std::error_code error;
  if (fs::exists(path, error) || !IsCheckpoint(place)) return path;
  throw DistributedError(absl::StatusCode::kDataLoss,
                         "checkpoint " + place + " is incomplete: it has tensors, but no " + kCheckpointIndex);
}

// `tensor.sizes` have a product.
Piece PieceOf(const Json& json, const Tensor& tensor) {
  Piece piece;
  piece.box.offset = json.at("at").get<std::vector<int64_t>>();
  piece.box.sizes = json.at("sizes").get<std::vector<int64_t>>();
  piece.box.local.assign(piece.box.offset.size(), 0);
  piece.offset = json.at("offset");
  bool fits = piece.box.offset.size() == tensor.sizes.size() && piece.box.sizes.size() == tensor.sizes.size();
  for (size_t dim = 0; fits && dim < tensor.sizes.size(); ++dim) {
    const int64_t at = piece.box.offset[dim], length = piece.box.sizes[dim], whole = tensor.sizes[dim];
    fits = at >= 0 && length >= 0 && at <= whole && length <= whole - at;
  }
  if (!fits) throw DistributedError(absl::StatusCode::kDataLoss, "it has a box that is no part of its tensor");
  for (const Json& cut : json.at("cuts")) {
    const std::vector<int64_t> tile = cut.at("tile");
    if (tile.size() != 2) throw DistributedError(absl::StatusCode::kDataLoss, "it has tiles without two sizes");
    CheckedCut checked = {.grid = MatrixOf(piece.box.sizes), .checksums = cut.at("checksums").get<std::string>()};
    checked.grid.tile_rows = tile[0];
    checked.grid.tile_columns = tile[1];
    piece.cuts.push_back(std::move(checked));
  }
  return piece;
}

Json JsonOf(const Piece& piece) {
  return {{"at", piece.box.offset},
          {"sizes", piece.box.sizes},
          {"file", piece.file},
          {"offset", piece.offset},
          {"cuts", JsonOf(piece.cuts)}};
}

int64_t FirstRow(const Piece& piece) { return piece.box.offset.empty() ? 0 : piece.box.offset.front(); }
int64_t EndRow(const Piece& piece) {
  return piece.box.offset.empty() ? 1 : piece.box.offset.front() + piece.box.sizes.front();
}

// Why the pieces do not fill the tensor once; "" where they do. Boxes lie within the tensor.
std::string WhyNotFilled(const Tensor& tensor) {
  const int64_t all = c10::multiply_integers(tensor.sizes);
  std::vector<const Piece*> pieces;
  int64_t together = 0;
  for (const Piece& piece : tensor.pieces) {
    if (piece.numel() == 0) continue;
    pieces.push_back(&piece);
    together += piece.numel();
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece* a, const Piece* b) { return FirstRow(*a) < FirstRow(*b); });
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = i + 1; j < pieces.size() && FirstRow(*pieces[j]) < EndRow(*pieces[i]); ++j) {
      if (Intersection(pieces[i]->box, pieces[j]->box).numel() > 0) return "elements are those of several ranks";
    }
  }
  return together == all ? ""
                         : std::to_string(all - together) + " of " + std::to_string(all) + " elements are nobody's";
}

}  // namespace

Box Intersection(const Box& a, const Box& b) {
  Box common;
  for (size_t dim = 0; dim < a.offset.size(); ++dim) {
    const int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const int64_t end = std::min(a.offset[dim] + a.sizes[dim], b.offset[dim] + b.sizes[dim]);
    common.offset.push_back(begin);
    common.sizes.push_back(std::max<int64_t>(end - begin, 0));
    common.local.push_back(0);
  }
  return common;
}

void CheckpointIndex::Add(const std::string& rank_text) {
  const Json rank = Json::parse(rank_text);
  const std::string file = rank["file"];
  files_[file] = {.bytes = rank["bytes"],
                  .header_bytes = rank["header_bytes"],
                  .header_checksum = rank["header_sha256"].get<std::string>()};
  for (const Json& json : rank["tensors"]) {
    const std::string name = json["name"];
    const at::ScalarType dtype = TypeOfSafetensors(json["dtype"]);
    const std::vector<int64_t> sizes = json["whole"];
    auto [entry, added] = tensors_.try_emplace(name);
    Tensor& tensor = entry->second;
    if (added) {
      tensor.dtype = dtype;
      tensor.sizes = sizes;
    }
    TORCH_CHECK(tensor.dtype == dtype && tensor.sizes == sizes,
                "checkpoint: ranks disagree about the type or sizes of ", name);
    tensor.pieces.push_back(PieceOf(json, tensor));
    tensor.pieces.back().file = file;
  }
}

void CheckpointIndex::CheckComplete() const {
  for (const auto& [name, tensor] : tensors_) {
    const std::string why = WhyNotFilled(tensor);
    TORCH_CHECK(why.empty(), "checkpoint: ", name, ": ", why);
  }
}

std::string CheckpointIndex::Write() const {
  Json tensors = Json::object(), files = Json::object();
  for (const auto& [name, tensor] : tensors_) {
    Json pieces = Json::array();
    for (const Piece& piece : tensor.pieces) pieces.push_back(JsonOf(piece));
    tensors[name] = {{"dtype", SafetensorsType(tensor.dtype)}, {"sizes", tensor.sizes}, {"pieces", pieces}};
  }
  for (const auto& [name, file] : files_) {
    files[name] = {{"bytes", file.bytes}, {"header_bytes", file.header_bytes}, {"header_sha256", file.header_checksum}};
  }
  const Json body = {{"format", kFormat}, {"values", values_}, {"files", files}, {"tensors", tensors}};
  return Json{{"body", body}, {"sha256", Sha256(body.dump().data(), body.dump().size())}}.dump(1) + "\n";
}

CheckpointIndex CheckpointIndex::Read(const std::string& directory) {
  const std::string path = IndexPath(directory);
  return Parse(ReadText(path), path);
}

CheckpointIndex CheckpointIndex::ReadTogether(comm::Communicator& world, const std::string& directory,
                                              std::chrono::nanoseconds timeout) {
  const std::string what = "loading checkpoint " + directory;
  std::string path = directory + "/" + kCheckpointIndex;
  CheckpointIndex index;
  std::string text;
  const auto read = [&] {
    if (world.rank() != 0) return;
    path = IndexPath(directory);
    text = ReadText(path);
    index = Parse(text, path);
  };
  TogetherOrNot(world, what, read, timeout);
  text = GatherTexts(world, text, what, timeout).front();
  return world.rank() == 0 ? index : Parse(text, path);
}

CheckpointIndex CheckpointIndex::Parse(const std::string& text, const std::string& path) {
  CheckpointIndex index;
  try {
    const auto [whole, why] = ParseJson(text);
    if (!why.empty()) throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + why);
    const Json& body = whole.at("body");
    const std::string checked = body.dump();
    if (Sha256(checked.data(), checked.size()) != whole.at("sha256").get<std::string>() ||
        text != whole.dump(1) + "\n") {
      throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: it is not what was written (SHA-256)");
    }
    if (body.at("format") != kFormat) {
      throw DistributedError(absl::StatusCode::kInvalidArgument,
                             path + " has format " + body.at("format").dump() + "; this program reads " + kFormat);
    }
    index.values_ = body.at("values").get<CheckpointValues>();
    for (const auto& [name, file] : body.at("files").items()) {
      index.files_[name] = {.bytes = file.at("bytes"),
                            .header_bytes = file.at("header_bytes"),
                            .header_checksum = file.at("header_sha256").get<std::string>()};
    }
    for (const auto& [name, tensor] : body.at("tensors").items()) {
      Tensor& entry = index.tensors_[name];
      entry.dtype = TypeOfSafetensors(tensor.at("dtype"));
      entry.sizes = tensor.at("sizes").get<std::vector<int64_t>>();
      int64_t elements = 1;
      for (const int64_t size : entry.sizes) {
        if (size >= 0 && !__builtin_mul_overflow(elements, size, &elements)) continue;
        throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + name + " has no such sizes");
      }
      for (const Json& piece : tensor.at("pieces")) {
        entry.pieces.push_back(PieceOf(piece, entry));
        entry.pieces.back().file = piece.at("file").get<std::string>();
      }
    }
  } catch (const Json::exception& error) {
    throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + error.what());
  }
  index.CheckRead(path);
  return index;
}

// The hash has no key: a file that somebody made may be whole and say anything.
void CheckpointIndex::CheckRead(const std::string& path) const {
  const auto require = [&path](bool holds, const std::string& what) {
    if (!holds) throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + what);
  };
  for (const auto& [name, file] : files_) {
    require(!name.empty() && name.find('/') == std::string::npos && name[0] != '.', "its files have paths");
    require(file.header_bytes >= 0 && file.bytes >= file.header_bytes, name + " has no such sizes");
  }
  for (const auto& [name, tensor] : tensors_) {
    const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const Piece& piece : tensor.pieces) {
      require(!piece.cuts.empty(), name + " has no checksums");
      const auto within = [](int64_t tile, int64_t all) { return tile >= 1 && tile <= std::max<int64_t>(all, 1); };
      for (const auto& [grid, checksums] : piece.cuts) {
        require(
            within(grid.tile_rows, grid.rows) && within(grid.tile_columns, grid.columns) &&
                checksums.size() % kTileChecksumSize == 0 &&  // a product by it could overflow
                grid.row_tiles() * grid.column_tiles() == static_cast<int64_t>(checksums.size()) / kTileChecksumSize,
            name + " has other tiles than checksums");
      }
      const auto file = files_.find(piece.file);
      require(file != files_.end(), name + " lies in a file that is not of the checkpoint");
      const int64_t space = file->second.bytes - file->second.header_bytes;
      require(piece.offset >= file->second.header_bytes && piece.numel() <= space / size &&
                  piece.offset <= file->second.bytes - piece.numel() * size,
              name + " reaches beyond " + piece.file);
    }
    const std::string why = WhyNotFilled(tensor);
    require(why.empty(), name + ": " + why);
  }
}

}  // namespace cohort::trainer
