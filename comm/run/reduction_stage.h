// Copies of a reduction's buffers in the type that it is computed in, for calls whose operands must be changed before
// they are combined: smaller floating-point types whose partial results would be rounded at every step, integers whose
// mean is wanted and whose sum may not fit, and pre-multiplied sums. The plan then runs on the copies, and the result
// is rounded once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/reduce/integer_mean.h"
#include "cohort/comm/request.h"
#include "cohort/comm/run/runner.h"

namespace cohort::comm {

constexpr bool AveragesIntegers(const CollectiveRequest& request) {
  return Reduces(request.kind) && request.op == ReduceOp::kAvg && !IsFloat(request.dtype);
}

// Bytes of the elements that a reduction of `size` ranks is computed in, unless one fold has all operands: those of the
// buffers' elements, or of a wider type's. Two ranks combine each element once, which a kernel rounds once by itself.
constexpr size_t ComputedBytes(const CollectiveRequest& request, int size) {
  if (AveragesIntegers(request)) return TotalBytes(request.dtype);
  const bool twice = size > 2 || request.op == ReduceOp::kPreMulSum;
  const bool wide = Reduces(request.kind) && twice && IsSmallFloat(request.dtype) && request.op != ReduceOp::kMin &&
                    request.op != ReduceOp::kMax && request.op != ReduceOp::kUser;
  return wide ? SizeOf(DataType::kFloat32) : SizeOf(request.dtype);
}

// One call at a time; its memory is kept for the next one.
class ReductionStage {
 public:
  // Whether a call of `size` ranks that the algorithm with this id serves needs a stage. All members decide alike.
  static bool Needed(const CollectiveRequest& request, int size, uint16_t algorithm) {
    if (!Reduces(request.kind)) return false;
    return request.op == ReduceOp::kPreMulSum ||
           (ComputedBytes(request, size) > SizeOf(request.dtype) && !FoldsOnce(request, size, algorithm));
  }
  // Whether such a call, if it needs no stage, is one fold (PlanRequest::fold_once).
  static bool Folds(const CollectiveRequest& request, int size, uint16_t algorithm) {
    return ComputedBytes(request, size) > SizeOf(request.dtype) && FoldsOnce(request, size, algorithm);
  }

  // Begins a call of rank `rank` of `size`. False: there is no memory for `bytes()` bytes.
  bool Begin(const CollectiveRequest& request, int rank, int size);
  size_t bytes() const { return bytes_; }
  // Boundedly much of the input; true when all of it is prepared.
  bool Prepare();
  // The buffers that the plan works on, and whether as an in-place call.
  void Bind(PlanBinding* binding) const;
  bool in_place() const { return in_place_; }
  // Boundedly much of the result; true when all of it lies in the caller's buffer.
  bool Finish();

 private:
  // In bytes. All members know the counts of all.
  static int64_t LongestBlock(const CollectiveRequest& request) {
    if (request.blocks == nullptr) return BytesOf(request);
    const std::vector<int64_t>& counts = request.blocks->in_counts;
    const int64_t longest = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    return longest * static_cast<int64_t>(SizeOf(request.dtype));
  }
  static bool FoldsOnce(const CollectiveRequest& request, int size, uint16_t algorithm) {
    return comm::FoldsOnce(FindAlgorithm(algorithm)->traits, LongestBlock(request), size);
  }

  const CollectiveRequest* request_ = nullptr;
  DataType wide_ = DataType::kFloat32;  // of what is no mean of integers
  size_t element_ = 1;                  // bytes, of the copies
  bool in_place_ = false;
  int divisor_ = 1;
  size_t in_elements_ = 0;
  size_t out_elements_ = 0;  // of the copy of the output; 0 where the plan writes the caller's
  size_t done_ = 0;          // elements, of the copying under way
  std::byte* out_ = nullptr;
  std::unique_ptr<std::byte[]> memory_;
  size_t memory_bytes_ = 0;
  size_t bytes_ = 0;
};

}  // namespace cohort::comm
