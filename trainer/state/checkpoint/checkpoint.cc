#include "cohort/trainer/state/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_depth.h"
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

constexpr const char* kFormat = "cohort-checkpoint-1";

int64_t Elements(const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (int64_t size : sizes) elements *= size;
  return elements;
}

// Every rank's text, by rank.
std::vector<std::string> GatherTexts(comm::Communicator& world, const std::string& mine, const std::string& what,
                                     std::chrono::nanoseconds timeout = kTogetherTimeout) {
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

std::string FileOf(const comm::Communicator& world) {
  char name[64];
  std::snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", world.rank(), world.size());
  return name;
}

// The pieces that this rank writes of its tensors.
struct OwnPieces {
  std::vector<FilePiece> pieces;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  std::vector<const CheckpointTensor*> sources;
};

OwnPieces Pieces(const std::vector<CheckpointTensor>& tensors) {
  OwnPieces own;
  for (const CheckpointTensor& tensor : tensors) {
    CheckLength(tensor);
    const int64_t count = tensor.end - tensor.begin;
    const int64_t begin = count * tensor.replica / tensor.replicas;
    const int64_t end = count * (tensor.replica + 1) / tensor.replicas;
    if (begin == end && Elements(tensor.sizes) > 0) continue;
    if (Elements(tensor.sizes) == 0 && tensor.replica > 0) continue;
    const bool whole = end - begin == Elements(tensor.sizes);
    const std::string range = std::to_string(tensor.begin + begin) + ":" + std::to_string(tensor.begin + end);
    own.pieces.push_back(
        {.key = whole ? tensor.name : tensor.name + "[" + range + "]",
         .shape = whole ? tensor.sizes : std::vector<int64_t>{end - begin},
         .data = tensor.data.detach().reshape({-1}).narrow(0, begin, end - begin).to(at::kCPU).contiguous()});
    own.ranges.emplace_back(tensor.begin + begin, tensor.begin + end);
    own.sources.push_back(&tensor);
  }
  return own;
}

// The path that the index is read from. Tensors without an index are left by a copy that was cut short or a mistaken
// rm.
std::string IndexPath(const std::string& directory) {
  const std::string place = ReadablePath(directory), path = place + "/" + kCheckpointIndex;
  std::error_code error;
  if (fs::exists(path, error) || !IsCheckpoint(place)) return path;
  throw DistributedError(absl::StatusCode::kDataLoss,
                         "checkpoint " + place + " is incomplete: it has tensors, but no " + kCheckpointIndex);
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
std::string WriteOwn(const std::string& directory, const std::string& file, OwnPieces& own) {
  const WrittenFile written = WriteTensors(directory + "/" + file, own.pieces, FilePlace::kInPartialFolder);
  Json tensors = Json::array();
  for (size_t i = 0; i < own.pieces.size(); ++i) {
    const FilePiece& piece = own.pieces[i];
    tensors.push_back({{"name", own.sources[i]->name},
                       {"dtype", SafetensorsType(piece.data.scalar_type())},
                       {"sizes", own.sources[i]->sizes},
                       {"begin", own.ranges[i].first},
                       {"end", own.ranges[i].second},
                       {"offset", piece.offset},
                       {"sha256", piece.checksum}});
  }
  return Json{{"file", file},
              {"bytes", written.bytes},
              {"header_bytes", written.header_bytes},
              {"header_sha256", written.header_checksum},
              {"tensors", tensors}}
      .dump();
}

}  // namespace

void CheckLength(const CheckpointTensor& tensor) {
  TORCH_CHECK(tensor.data.defined() && tensor.data.numel() == tensor.end - tensor.begin, "checkpoint: ", tensor.name,
              " says elements ", tensor.begin, " to ", tensor.end, " but brings ",
              tensor.data.defined() ? tensor.data.numel() : 0);
}

CheckpointTensor ReplicatedTensor(const std::string& name, const at::Tensor& tensor, const comm::Communicator& group) {
  return {.name = name,
          .sizes = tensor.sizes().vec(),
          .begin = 0,
          .end = tensor.numel(),
          .data = tensor,
          .replica = group.rank(),
          .replicas = group.size()};
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
  together([&] {
    OwnPieces own = Pieces(tensors);
    own_text = WriteOwn(partial, FileOf(world), own);
  });
  const auto texts = GatherTexts(world, own_text, what, timeout);
  together([&] {
    if (world.rank() != 0) return;  // who hears of what is wrong with it: an index of all ranks' tensors is long
    CheckpointIndex index;
    for (const std::string& text : texts) index.Add(text);
    index.CheckComplete();
    for (const auto& [name, file] : index.files_) writing->ExpectFile(name, file.bytes);
    index.values_ = values;
    writing->WriteIndex(index.Write());
    writing->Publish();
  });
}

void CheckpointIndex::Add(const std::string& rank_text) {
  const Json rank = Json::parse(rank_text);
  const std::string file = rank["file"];
  files_[file] = {.bytes = rank["bytes"],
                  .header_bytes = rank["header_bytes"],
                  .header_checksum = rank["header_sha256"].get<std::string>()};
  for (const Json& piece : rank["tensors"]) {
    const std::string name = piece["name"];
    const at::ScalarType dtype = TypeOfSafetensors(piece["dtype"]);
    const std::vector<int64_t> sizes = piece["sizes"];
    auto [entry, added] = tensors_.try_emplace(name);
    Tensor& tensor = entry->second;
    if (added) {
      tensor.dtype = dtype;
      tensor.sizes = sizes;
    }
    TORCH_CHECK(tensor.dtype == dtype && tensor.sizes == sizes,
                "checkpoint: ranks disagree about the type or sizes of ", name);
    tensor.pieces.push_back({.begin = piece["begin"],
                             .end = piece["end"],
                             .file = file,
                             .offset = piece["offset"],
                             .checksum = piece["sha256"].get<std::string>()});
  }
}

void CheckpointIndex::CheckComplete() const {
  for (const auto& [name, tensor] : tensors_) {
    std::vector<Piece> pieces = tensor.pieces;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    int64_t reached = 0;
    for (const Piece& piece : pieces) {
      TORCH_CHECK(piece.begin == reached, "checkpoint: elements ", std::min(piece.begin, reached), " to ",
                  std::max(piece.begin, reached), " of ", name, " are ",
                  piece.begin > reached ? "nobody's" : "those of several ranks");
      reached = piece.end;
    }
    TORCH_CHECK(reached == Elements(tensor.sizes), "checkpoint: elements from ", reached, " of ", name,
                " are nobody's");
  }
}

std::string CheckpointIndex::Write() const {
  Json tensors = Json::object(), files = Json::object();
  for (const auto& [name, tensor] : tensors_) {
    Json pieces = Json::array();
    for (const Piece& piece : tensor.pieces) {
      pieces.push_back({{"begin", piece.begin},
                        {"end", piece.end},
                        {"file", piece.file},
                        {"offset", piece.offset},
                        {"sha256", piece.checksum}});
    }
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
    if (NestsTooDeep(text))
      throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: it nests too deep");
    const Json whole = Json::parse(text);
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
      for (const Json& piece : tensor.at("pieces")) {
        entry.pieces.push_back({.begin = piece.at("begin"),
                                .end = piece.at("end"),
                                .file = piece.at("file").get<std::string>(),
                                .offset = piece.at("offset"),
                                .checksum = piece.at("sha256").get<std::string>()});
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
    int64_t elements = 1;
    for (const int64_t size : tensor.sizes) {
      require(size >= 0 && !__builtin_mul_overflow(elements, size, &elements), name + " has no such sizes");
    }
    std::vector<Piece> pieces = tensor.pieces;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    int64_t next = 0;
    for (const Piece& piece : pieces) {
      require(piece.begin == next && piece.end >= piece.begin, name + " has gaps or overlaps");
      const auto file = files_.find(piece.file);
      require(file != files_.end(), name + " lies in a file that is not of the checkpoint");
      const int64_t space = file->second.bytes - file->second.header_bytes;
      require(piece.offset >= file->second.header_bytes && (piece.end - piece.begin) <= space / size &&
                  piece.offset <= file->second.bytes - (piece.end - piece.begin) * size,
              name + " reaches beyond " + piece.file);
      next = piece.end;
    }
    require(next == elements, name + " is incomplete");
  }
}

void LoadTensors(const std::string& directory, const CheckpointIndex& index,
                 const std::vector<CheckpointTensor>& tensors) {
  const at::NoGradGuard no_grad;
  const std::string place = ReadablePath(directory);
  std::map<std::string, std::unique_ptr<TensorFileReader>> readers;
  for (const CheckpointTensor& wanted : tensors) {
    CheckLength(wanted);
    const auto found = index.tensors_.find(wanted.name);
    TORCH_CHECK(found != index.tensors_.end(), "checkpoint ", directory, " has no tensor ", wanted.name);
    const CheckpointIndex::Tensor& tensor = found->second;
    TORCH_CHECK(tensor.sizes == wanted.sizes, "checkpoint ", directory, ": ", wanted.name, " has sizes ",
                at::IntArrayRef(tensor.sizes), " there and ", at::IntArrayRef(wanted.sizes), " here");
    TORCH_CHECK(tensor.dtype == wanted.data.scalar_type(), "checkpoint ", directory, ": ", wanted.name, " has type ",
                tensor.dtype, " there and ", wanted.data.scalar_type(), " here");
    const bool in_order = wanted.data.is_contiguous();  // not so in the memory format of channels_last
    at::Tensor target =
        in_order ? wanted.data.detach().view({-1}) : at::empty(wanted.data.numel(), wanted.data.options());
    const int64_t size = static_cast<int64_t>(wanted.data.element_size());
    for (const CheckpointIndex::Piece& piece : tensor.pieces) {
      const int64_t begin = std::max(piece.begin, wanted.begin), end = std::min(piece.end, wanted.end);
      if (begin >= end) continue;
      std::unique_ptr<TensorFileReader>& reader = readers[piece.file];
      if (reader == nullptr) {
        const CheckpointIndex::File& file = index.files_.at(piece.file);
        reader = std::make_unique<TensorFileReader>(
            place + "/" + piece.file,
            WrittenFile{
                .bytes = file.bytes, .header_bytes = file.header_bytes, .header_checksum = file.header_checksum});
      }
      const auto bytes = reader->Read(piece.offset, (piece.end - piece.begin) * size, piece.checksum);
      const at::Tensor read = at::from_blob(const_cast<char*>(bytes.data()) + (begin - piece.begin) * size,
                                            {end - begin}, at::TensorOptions(tensor.dtype));
      target.narrow(0, begin - wanted.begin, end - begin).copy_(read);
    }
    if (!in_order) wanted.data.detach().copy_(target.view(wanted.data.sizes()));
  }
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
    const at::Tensor data = at::empty(tensor.sizes, at::TensorOptions(tensor.dtype));
    tensors.push_back({.name = name, .sizes = tensor.sizes, .begin = 0, .end = data.numel(), .data = data});
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
