// Writes checkpoints of format cohort-checkpoint-1, as programs before boxes did: pieces are ranges of elements of the
// whole, row by row.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "nlohmann/json.hpp"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {

// Elements [begin, end) of a tensor.
struct OldPiece {
  std::string name;
  std::vector<int64_t> sizes;  // of the whole
  int64_t begin = 0, end = 0;
  at::Tensor data;  // end - begin elements
};

// Collective over `group`; `directory` must not exist.
inline void WriteOldCheckpoint(comm::Communicator& group, const std::string& directory,
                               const std::vector<OldPiece>& own, const CheckpointValues& values) {
  using Json = nlohmann::json;
  std::filesystem::create_directories(directory);
  const std::string file = "rank-" + std::to_string(group.rank()) + ".safetensors";
  std::vector<FilePiece> pieces;
  for (const OldPiece& piece : own) {
    if (piece.begin == piece.end) continue;
    pieces.push_back({.key = piece.name + "[" + std::to_string(piece.begin) + ":" + std::to_string(piece.end) + "]",
                      .shape = {piece.end - piece.begin},
                      .data = piece.data.detach().reshape({-1}).contiguous()});
  }
  const WrittenFile written = WriteTensors(directory + "/" + file, pieces, FilePlace::kInPartialFolder);
  Json mine = {
      {"file", file},
      {"facts",
       {{"bytes", written.bytes}, {"header_bytes", written.header_bytes}, {"header_sha256", written.header_checksum}}},
      {"pieces", Json::array()}};
  size_t next = 0;
  for (const OldPiece& piece : own) {
    if (piece.begin == piece.end) continue;
    const FilePiece& there = pieces[next++];
    mine["pieces"].push_back({{"name", piece.name},
                              {"dtype", SafetensorsType(there.data.scalar_type())},
                              {"sizes", piece.sizes},
                              {"piece",
                               {{"begin", piece.begin},
                                {"end", piece.end},
                                {"file", file},
                                {"offset", there.offset},
                                {"sha256", Sha256(there.data.data_ptr(), there.data.nbytes())}}}});
  }
  Json files = Json::object(), tensors = Json::object();
  for (const std::string& text : GatherTexts(group, mine.dump(), "a test")) {
    const Json rank = Json::parse(text);
    files[rank["file"].get<std::string>()] = rank["facts"];
    for (const Json& piece : rank["pieces"]) {
      Json& tensor = tensors[piece["name"].get<std::string>()];
      tensor["dtype"] = piece["dtype"];
      tensor["sizes"] = piece["sizes"];
      tensor["pieces"].push_back(piece["piece"]);
    }
  }
  if (group.rank() == 0) {
    const Json body = {{"format", "cohort-checkpoint-1"}, {"values", values}, {"files", files}, {"tensors", tensors}};
    const Json index = {{"body", body}, {"sha256", Sha256(body.dump().data(), body.dump().size())}};
    std::ofstream(directory + "/index.json", std::ios::binary) << index.dump(1) << "\n";
  }
  ASSERT_TRUE(group.Barrier().Wait().ok());
}

}  // namespace cohort::trainer
