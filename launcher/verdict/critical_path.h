// The critical path of a time: at each moment the rank for which, through others or not, the last one had to wait.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cohort/launcher/verdict/timelines.h"

namespace cohort::launcher {

// A part of the path.
struct PathPiece {
  enum class Kind {
    kOwn,   // the rank's own time before a call
    kCall,  // in that call, when all that it waited for had come
  };
  Kind kind = Kind::kOwn;
  uint32_t rank = 0;
  size_t call = 0;  // index; behind the last call where the rank makes none more
  Span span;
};

class CriticalPath {
 public:
  // `timelines` outlives it.
  explicit CriticalPath(const Timelines& timelines);

  // The path that ends with `rank` at the end of `span` and begins at its beginning, latest pieces first. A rank that
  // waits is not on it: the path goes on at the one that it waits for. Pieces of ranks of several nodes may overlap by
  // as much as the nodes' clocks are apart.
  std::vector<PathPiece> Find(uint32_t rank, const Span& span) const;
  // The time for which each other rank was blocked in these spans. Time that lies in two of them counts twice. Ranks
  // that were not are left out.
  std::map<uint32_t, uint64_t> Blocked(const std::vector<Span>& spans) const;

 private:
  // The waits of one rank by the ends of their calls, and for each the latest release of it and those before.
  struct Waits {
    std::vector<size_t> calls;
    std::vector<size_t> latest;
    std::vector<Span> blocked;  // by time, without overlaps
  };
  void AddPieces(uint32_t rank, const Span& span, std::vector<PathPiece>* path) const;

  const Timelines& timelines_;
  std::map<uint32_t, Waits> waits_;
};

// The time of a call itself on its rank: from when all that it waited for had come to the rank's next event.
Span CallSpan(const std::vector<PlacedCall>& line, size_t call);

}  // namespace cohort::launcher
