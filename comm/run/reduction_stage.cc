#include "cohort/comm/run/reduction_stage.h"

#include <algorithm>
#include <new>

#include "cohort/comm/reduce/reduce.h"

namespace cohort::comm {
namespace {

constexpr size_t kElementsAtOnce = 32 * 1024;

// Elements from the start of a buffer to the end of its last block.
size_t Extent(const std::vector<int64_t>& counts, const std::vector<int64_t>& places) {
  int64_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) end = std::max(end, places[i] + counts[i]);  // an empty block may lie anywhere
  }
  return static_cast<size_t>(end);
}

}  // namespace

bool ReductionStage::Begin(const CollectiveRequest& request, int rank, int size) {
  const BufferBlocks blocks = BlocksOf(request.kind, rank == request.root, size);
  request_ = &request;
  wide_ = AccumulatorOf(request.dtype);
  element_ = AveragesIntegers(request) ? TotalBytes(request.dtype) : SizeOf(wide_);
  divisor_ = request.op == ReduceOp::kAvg ? size : 1;
  done_ = 0;
  const auto count = static_cast<size_t>(request.count);
  in_elements_ = count * static_cast<size_t>(blocks.in);
  size_t out_elements = count * static_cast<size_t>(blocks.out);
  if (request.blocks != nullptr) {
    in_elements_ = Extent(request.blocks->in_counts, request.blocks->in_places);
    out_elements = Extent(request.blocks->out_counts, request.blocks->out_places);
  }
  out_elements_ = element_ == SizeOf(request.dtype) ? 0 : out_elements;
  in_place_ = out_elements_ > 0 && blocks.in == 1 && blocks.out == 1 && request.blocks == nullptr;
  bytes_ = (in_elements_ + (in_place_ ? 0 : out_elements_)) * element_;
  if (memory_bytes_ < bytes_) {
    memory_.reset(new (std::nothrow) std::byte[bytes_]);
    memory_bytes_ = memory_ == nullptr ? 0 : bytes_;
  }
  if (memory_bytes_ < bytes_) return false;
  out_ = memory_.get() + (in_place_ ? 0 : in_elements_ * element_);
  return true;
}

bool ReductionStage::Prepare() {
  const size_t n = std::min(in_elements_ - done_, kElementsAtOnce);
  std::byte* const to = memory_.get() + done_ * element_;
  const std::byte* const from = static_cast<const std::byte*>(request_->in) + done_ * SizeOf(request_->dtype);
  if (AveragesIntegers(*request_)) {
    ToTotals(request_->dtype, to, from, n);
  } else {
    comm::Prepare(request_->dtype, to, from, n, request_->factor);
  }
  done_ += n;
  if (done_ < in_elements_) return false;
  done_ = 0;
  return true;
}

void ReductionStage::Bind(PlanBinding* binding) const {
  binding->in = memory_.get();
  if (out_elements_ > 0) binding->out = out_;
  binding->element_bytes = element_;
  if (AveragesIntegers(*request_)) {
    binding->kernel = FindTotalKernel(request_->dtype);
    binding->fold = FindTotalFoldKernel(request_->dtype);
    return;
  }
  binding->dtype = wide_;
  binding->kernel = FindReduceKernel(wide_, request_->op);
  binding->fold = FindFoldKernel(wide_, request_->op);
}

bool ReductionStage::Finish() {
  const size_t n = std::min(out_elements_ - done_, kElementsAtOnce);
  std::byte* const to = static_cast<std::byte*>(request_->out) + done_ * SizeOf(request_->dtype);
  const std::byte* const from = out_ + done_ * element_;
  if (AveragesIntegers(*request_)) {
    ToMeans(request_->dtype, to, from, n, divisor_);
  } else {
    comm::Finish(request_->dtype, to, from, n, divisor_);
  }
  done_ += n;
  return done_ == out_elements_;
}

}  // namespace cohort::comm
