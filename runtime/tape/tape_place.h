// The names of tapes: DIR/rank-3.epoch-1.tape is what rank 3 got in its job's first epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::runtime {

struct TapePlace {
  int rank = 0;
  uint64_t epoch = 1;
  uint64_t runtime = 1;  // the rank's first, second, ... in this epoch (Runtime::Finalize and Init again)

  bool operator==(const TapePlace&) const = default;
};

// "rank-3.epoch-1.tape"; of the rank's second runtime "rank-3.epoch-1.runtime-2.tape".
std::string TapeName(const TapePlace& place);
// The place that a file's name says; nothing where it is no name of a tape.
std::optional<TapePlace> ReadTapeName(std::string_view name);
// The later parts of the tape at `path`, under --tape-last: `path` with ".7" behind it.
std::string TapePartPath(const std::string& path, uint64_t part);
// The numbers of the parts that lie beside the tape at `path`, in order, without the first. Blocks on the folder.
std::vector<uint64_t> TapePartsOf(const std::string& path);
// All tapes in a folder, by rank, epoch and runtime. kNotFound, kPermissionDenied: the folder can't be read. Blocks.
absl::StatusOr<std::vector<TapePlace>> TapesIn(const std::string& folder);

}  // namespace cohort::runtime
