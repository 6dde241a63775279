#include "cohort/trainer/state/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "c10/util/accumulate.h"
#include "cohort/runtime/ranges.h"
#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/checkpoint/checkpoint_directory.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/transfer/collectives.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

}  // namespace

std::vector<std::string> GatherTexts(comm::Communicator& world, const std::string& mine, const std::string& what,
                                     std::chrono::nanoseconds timeout) {
  const comm::CallOptions options = {.timeout = timeout};
  const int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(world.size());
  ThrowUnlessOk(
      AllGather(world, comm::ConstBuffer(&length, 1), comm::Buffer(lengths.data(), world.size()), options).Wait(),
      what);
  int64_t total = 0;
  for (int64_t each : lengths) total += each;
  std::string all(static_cast<size_t>(total), '\0');
  const comm::ConstBuffer in(reinterpret_cast<const uint8_t*>(mine.data()), length);
  const comm::Buffer out(reinterpret_cast<uint8_t*>(all.data()), total);
  ThrowUnlessOk(AllGatherV(world, in, out, {.counts = lengths, .displacements = {}}, options).Wait(), what);
  std::vector<std::string> texts;
  size_t offset = 0;
  for (int64_t each : lengths) {
    texts.push_back(all.substr(offset, static_cast<size_t>(each)));
    offset += static_cast<size_t>(each);
  }
  return texts;
}

namespace {

std::string FileOf(const comm::Communicator& world) {
  char name[64];
  std::snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", world.rank(), world.size());
  return name;
}

// "[0:2,4:8]", or "" for the whole.
std::string PlaceText(const CheckpointTensor& part) {
  const Box& box = part.boxes.front();
  if (box.sizes == part.sizes) return "";
  std::string text;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    text += (dim == 0 ? "[" : ",") + std::to_string(box.offset[dim]) + ":" +
            std::to_string(box.offset[dim] + box.sizes[dim]);
  }
  return text + "]";
}

// The tensors of `pieces` again, by their other names: a strict load_state_dict asks for all that a module has.
void AddAliases(const std::map<std::string, std::string>& aliases, const std::string& prefix,
                std::vector<FilePiece>& pieces) {
  std::map<std::string, FilePiece> by_key;
  for (const FilePiece& piece : pieces) by_key[piece.key] = piece;
  for (const auto& [alias, name] : aliases) {
    if (!alias.starts_with(prefix) || !name.starts_with(prefix)) continue;
    const auto piece = by_key.find(name.substr(prefix.size()));
    const std::string key = alias.substr(prefix.size());
    if (piece == by_key.end() || by_key.contains(key)) continue;
    pieces.push_back(piece->second);
    pieces.back().key = key;
  }
}

// Writes this rank's file and describes it.
std::string WriteOwn(const std::string& directory, const std::string& file,
                     const std::vector<CheckpointTensor>& parts) {
  std::vector<FilePiece> pieces;
  for (const CheckpointTensor& part : parts) {
    pieces.push_back({.key = part.name + PlaceText(part),
                      .shape = part.boxes.front().sizes,
                      .whole = part.sizes,
                      .data = part.data.to(at::kCPU).contiguous().resolve_conj().resolve_neg()});
  }
  const WrittenFile written = WriteTensors(directory + "/" + file, pieces, FilePlace::kInPartialFolder);
  Json tensors = Json::array();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FilePiece& piece = pieces[i];
    tensors.push_back({{"name", parts[i].name},
                       {"dtype", SafetensorsType(piece.data.scalar_type())},
                       {"whole", parts[i].sizes},
                       {"at", parts[i].boxes.front().offset},
                       {"sizes", piece.shape},
                       {"offset", piece.offset},
                       {"cuts", JsonOf(piece.cuts)}});
  }
  return Json{{"file", file},
              {"bytes", written.bytes},
              {"header_bytes", written.header_bytes},
              {"header_sha256", written.header_checksum},
              {"tensors", tensors}}
      .dump();
}

// Opens files when they are first needed, and counts what is read of them.
class Files {
 public:
  Files(const std::string& directory, const CheckpointIndex& index) : place_(ReadablePath(directory)), index_(index) {}

  TensorFileReader& Of(const CheckpointIndex::Piece& piece) {
    std::unique_ptr<TensorFileReader>& reader = readers_[piece.file];
    if (reader == nullptr) {
      const CheckpointIndex::File& file = index_.files().at(piece.file);
      reader = std::make_unique<TensorFileReader>(
          place_ + "/" + piece.file,
          WrittenFile{.bytes = file.bytes, .header_bytes = file.header_bytes, .header_checksum = file.header_checksum});
    }
    return *reader;
  }
  int64_t bytes_read = 0;

 private:
  const std::string place_;
  const CheckpointIndex& index_;
  std::map<std::string, std::unique_ptr<TensorFileReader>> readers_;
};

// Copies what `piece` and `wanted` have in common to `target`, which is `wanted`.
void LoadBox(Files& files, const CheckpointIndex::Piece& piece, const Box& wanted, const at::Tensor& target) {
  const Box common = Intersection(piece.box, wanted);
  if (common.numel() == 0) return;
  // Strides in the piece, and where the common part begins and ends in its rows.
  const size_t dims = common.sizes.size();
  std::vector<int64_t> strides(dims, 1);
  for (size_t dim = dims; dim-- > 1;) strides[dim - 1] = strides[dim] * piece.box.sizes[dim];
  int64_t column = 0, last_column = 0;
  for (size_t dim = 1; dim < dims; ++dim) {
    const int64_t begin = common.offset[dim] - piece.box.offset[dim];
    column += begin * strides[dim];
    last_column += (begin + common.sizes[dim] - 1) * strides[dim];
  }
  const int64_t row = dims == 0 ? 0 : common.offset.front() - piece.box.offset.front();
  const int64_t rows = dims == 0 ? 1 : common.sizes.front();
  const auto needed = [&](const CheckedCut& cut) {
    return TilesWith(cut.grid, row, row + rows, column, last_column + 1);
  };
  const CheckedCut& cut = *std::min_element(piece.cuts.begin(), piece.cuts.end(), [&](const auto& a, const auto& b) {
    return ElementsOf(a.grid, needed(a)) < ElementsOf(b.grid, needed(b));
  });
  const TileRange range = needed(cut);
  std::vector<char> bytes =
      files.Of(piece).ReadTiles(piece.offset, cut, range, static_cast<int64_t>(target.element_size()));
  files.bytes_read += static_cast<int64_t>(bytes.size());
  const int64_t left = range.first_column * cut.grid.tile_columns;
  const int64_t width = std::min(range.last_column * cut.grid.tile_columns, cut.grid.columns) - left;
  const int64_t begin = (row - range.first_row * cut.grid.tile_rows) * width + column - left;
  if (dims > 0) strides.front() = width;
  const auto element_size = static_cast<int64_t>(target.element_size());
  const at::Tensor read = at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size()) / element_size},
                                        at::TensorOptions(target.scalar_type()))
                              .as_strided(common.sizes, strides, begin);
  at::Tensor to = target;
  for (size_t dim = 0; dim < dims; ++dim) {
    to = to.narrow(static_cast<int64_t>(dim), common.offset[dim] - wanted.offset[dim], common.sizes[dim]);
  }
  to.copy_(read);
}

}  // namespace

std::vector<Box> WholeBox(const std::vector<int64_t>& sizes) {
  const std::vector<int64_t> zeros(sizes.size(), 0);
  return {{.offset = zeros, .sizes = sizes, .local = zeros}};
}

std::vector<Box> RowsBox(const std::vector<int64_t>& sizes, int64_t begin, int64_t end) {
  std::vector<Box> rows = WholeBox(sizes);
  rows.front().offset.at(0) = begin;
  rows.front().sizes.at(0) = end - begin;
  return rows;
}

void CheckLength(const CheckpointTensor& tensor) {
  int64_t elements = 0;
  for (const Box& box : tensor.boxes) elements += box.numel();
  TORCH_CHECK(tensor.data.defined() && tensor.data.numel() == elements, "checkpoint: ", tensor.name, " says ", elements,
              " elements but brings ", tensor.data.defined() ? tensor.data.numel() : 0);
}

CheckpointTensor ReplicatedTensor(const std::string& name, const at::Tensor& tensor, const comm::Communicator& group) {
  return {.name = name,
          .sizes = tensor.sizes().vec(),
          .boxes = WholeBox(tensor.sizes().vec()),
          .data = tensor,
          .replica = group.rank(),
          .replicas = group.size()};
}

std::vector<CheckpointTensor> OwnParts(const std::vector<CheckpointTensor>& tensors) {
  std::vector<CheckpointTensor> parts;
  for (const CheckpointTensor& tensor : tensors) {
    CheckLength(tensor);
    const bool empty = c10::multiply_integers(tensor.sizes) == 0;  // its name is kept
    if (empty && tensor.replica > 0) continue;
    if (empty) {
      parts.push_back({.name = tensor.name,
                       .sizes = tensor.sizes,
                       .boxes = WholeBox(tensor.sizes),
                       .data = at::empty(tensor.sizes, tensor.data.options().requires_grad(false))});
      continue;
    }
    for (const Box& box : tensor.boxes) {
      if (box.numel() == 0) continue;
      const auto longest = std::max_element(box.sizes.begin(), box.sizes.end());
      const size_t dim = static_cast<size_t>(longest - box.sizes.begin());
      const int64_t length = box.sizes.empty() ? 1 : *longest;
      const int64_t begin = length * tensor.replica / tensor.replicas;
      const int64_t end = length * (tensor.replica + 1) / tensor.replicas;
      if (begin == end) continue;
      Box own = box;
      at::Tensor data = BoxOf(tensor.data.detach(), box);
      if (!box.sizes.empty()) {
        own.offset[dim] += begin;
        own.sizes[dim] = end - begin;
        data = data.narrow(static_cast<int64_t>(dim), begin, end - begin);
      }
      own.local.assign(own.local.size(), 0);
      parts.push_back({.name = tensor.name, .sizes = tensor.sizes, .boxes = {own}, .data = data});
    }
  }
  return parts;
}

void TogetherOrNot(comm::Communicator& world, const std::string& what, const std::function<void()>& work,
                   std::chrono::nanoseconds timeout) {
  std::string failure;  // a code and a text, whatever was thrown; empty where nothing was
  const auto fail = [&failure](absl::StatusCode code, const std::string& why) {
    failure = std::to_string(static_cast<int>(code)) + " " + why;
  };
  try {
    work();
  } catch (const DistributedError& error) {
    fail(error.code(), error.what_without_backtrace());
  } catch (...) {  // a rank that left here would keep the others waiting
    fail(absl::StatusCode::kInvalidArgument, TextOfCaught());
  }
  const auto failures = GatherTexts(world, failure, what, timeout);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (failures[rank].empty()) continue;
    const size_t space = failures[rank].find(' ');
    throw DistributedError(static_cast<absl::StatusCode>(std::stoi(failures[rank].substr(0, space))),
                           what + ": rank " + std::to_string(rank) + ": " + failures[rank].substr(space + 1));
  }
}

void SaveCheckpoint(comm::Communicator& world, const std::string& directory,
                    const std::vector<CheckpointTensor>& tensors, const CheckpointValues& values,
                    std::chrono::nanoseconds timeout) {
  const runtime::Range shown("save " + directory, runtime::RangeLane::kCheckpoints);
  std::string target = directory;  // "step-1/" would be written as step-1/.partial, within itself
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  const std::string partial = target + ".partial";
  const std::string what = "saving checkpoint " + target;
  const auto together = [&](const std::function<void()>& work) { TogetherOrNot(world, what, work, timeout); };
  std::unique_ptr<PartialDirectory> writing;  // rank 0's; gone with what is in it when anything fails
  together([&] {
    if (world.rank() == 0) writing = std::make_unique<PartialDirectory>(target);
  });
  std::string own_text;
  together([&] { own_text = WriteOwn(partial, FileOf(world), OwnParts(tensors)); });
  const auto texts = GatherTexts(world, own_text, what, timeout);
  together([&] {
    if (world.rank() != 0) return;  // they are told what is wrong with it: an index of all ranks' tensors is long
    CheckpointIndex index;
    for (const std::string& text : texts) index.Add(text);
    index.CheckComplete();
    for (const auto& [name, file] : index.files()) writing->ExpectFile(name, file.bytes);
    index.set_values(values);
    writing->WriteIndex(index.Write());
    writing->Publish();
  });
}

int64_t LoadTensors(const std::string& directory, const CheckpointIndex& index,
                    const std::vector<CheckpointTensor>& tensors) {
  const runtime::Range shown("load " + directory, runtime::RangeLane::kCheckpoints);
  const at::NoGradGuard no_grad;
  Files files(directory, index);
  for (const CheckpointTensor& wanted : tensors) {
    CheckLength(wanted);
    const auto found = index.tensors().find(wanted.name);
    TORCH_CHECK(found != index.tensors().end(), "checkpoint ", directory, " has no tensor ", wanted.name);
    const CheckpointIndex::Tensor& tensor = found->second;
    TORCH_CHECK(tensor.sizes == wanted.sizes, "checkpoint ", directory, ": ", wanted.name, " has sizes ",
                at::IntArrayRef(tensor.sizes), " there and ", at::IntArrayRef(wanted.sizes), " here");
    TORCH_CHECK(tensor.dtype == wanted.data.scalar_type(), "checkpoint ", directory, ": ", wanted.name, " has type ",
                tensor.dtype, " there and ", wanted.data.scalar_type(), " here");
    for (const Box& box : wanted.boxes) {
      if (box.numel() == 0) continue;
      const at::Tensor target = BoxOf(wanted.data.detach(), box);
      for (const CheckpointIndex::Piece& piece : tensor.pieces) LoadBox(files, piece, box, target);
    }
  }
  return files.bytes_read;
}

void ExportSafetensors(const std::string& directory, const std::string& file, const std::string& prefix) {
  std::error_code ignored;
  if (fs::exists(file, ignored) && !fs::is_regular_file(file, ignored)) {  // such as /dev/null
    throw DistributedError(absl::StatusCode::kFailedPrecondition,
                           "can't export as " + file + ": it is no ordinary file, and would be replaced by one");
  }
  const CheckpointIndex index = CheckpointIndex::Read(directory);
  std::vector<CheckpointTensor> tensors;
  std::vector<FilePiece> pieces;
  for (const auto& [name, tensor] : index.tensors()) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    TORCH_CHECK(tensor.dtype != at::kComplexDouble, "checkpoint ", directory, ": ", name,
                " is ComplexDouble, for which safetensors files have no type; keep it as ComplexFloat");
    const at::Tensor data = at::empty(tensor.sizes, at::TensorOptions(tensor.dtype));
    tensors.push_back({.name = name, .sizes = tensor.sizes, .boxes = WholeBox(tensor.sizes), .data = data});
    pieces.push_back({.key = name.substr(prefix.size()), .shape = tensor.sizes, .data = data});
  }
  TORCH_CHECK(!tensors.empty(), "checkpoint ", directory, " has no tensor whose name begins with ", prefix);
  LoadTensors(directory, index, tensors);
  AddAliases(AliasesIn(index.values()), prefix, pieces);
  WriteTensors(file, pieces, FilePlace::kAlone, {{"format", "pt"}});
}

std::vector<std::string> CheckpointsTogether(comm::Communicator& world, const std::string& root,
                                             std::chrono::nanoseconds timeout) {
  const std::string what = "looking for checkpoints";
  std::string names;  // each with a '\0' behind it
  const auto look = [&] {
    if (world.rank() != 0) return;
    for (const std::string& path : CheckpointsIn(root)) names += fs::path(path).filename().string() + '\0';
  };
  TogetherOrNot(world, what, look, timeout);
  names = GatherTexts(world, names, what, timeout).front();
  std::vector<std::string> paths;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = names.find('\0', begin);
    paths.push_back((fs::path(root) / names.substr(begin, end - begin)).string());
    begin = end + 1;
  }
  return paths;
}

}  // namespace cohort::trainer
