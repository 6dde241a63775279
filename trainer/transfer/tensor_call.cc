#include "cohort/trainer/transfer/tensor_call.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {
namespace {

using runtime::Work;

struct OnDevice {
  Work work;
  at::Tensor in, out;
};
// Calls that a device may still be busy with.
constexpr size_t kMostOnDevice = 64;
runtime::Mutex mutex;
std::deque<OnDevice>& Kept() COHORT_REQUIRES(mutex) {
  static auto* kept = new std::deque<OnDevice>;  // for ever: threads may outlive main()
  return *kept;
}

// Keeps the tensors until the device is through with them. Forgets those of calls that are done.
void KeepUntilDone(OnDevice call) {
  Work oldest;
  {
    runtime::MutexLock lock(mutex);
    std::deque<OnDevice>& kept = Kept();
    kept.push_back(std::move(call));
    std::erase_if(kept, [](OnDevice& each) { return each.work.Done() && each.work.Wait().ok(); });
    if (kept.size() <= kMostOnDevice) return;
    call = std::move(kept.front());
    kept.pop_front();
  }
  ThrowUnlessAllCame(call.work.Wait(), "an earlier collective on a device");
}

bool AllEqual(const std::vector<int64_t>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes.front(); });
}

// As collectives take it.
at::Tensor Plain(const at::Tensor& x) { return x.detach().contiguous().resolve_conj().resolve_neg(); }

// The real numbers of one row of `x`.
int64_t RowOf(const at::Tensor& x) {
  int64_t row = RealsPerElement(x.scalar_type());
  for (int64_t i = 1; i < x.dim(); ++i) row *= x.size(i);
  return row;
}

at::Tensor WithRows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.front() = rows;
  return at::empty(sizes, x.options());
}

std::vector<int64_t> Times(std::vector<int64_t> sizes, int64_t factor) {
  for (int64_t& size : sizes) size *= factor;
  return sizes;
}

int64_t Sum(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

// A local check: a wrong length would otherwise be other ranks' error.
void CheckBlocks(const char* call, const at::Tensor& x, int64_t rows, const comm::Communicator& group,
                 const std::vector<int64_t>& sizes) {
  TORCH_CHECK(x.dim() > 0, call, ": a tensor without dimensions has no blocks");
  TORCH_CHECK(static_cast<int>(sizes.size()) == group.size(), call, ": ", sizes.size(), " blocks for ", group.size(),
              " ranks");
  TORCH_CHECK(x.size(0) == rows, call, ": this rank has ", x.size(0), " rows, and its part of ", Sum(sizes), " on ",
              group.size(), " ranks is ", rows);
}

std::vector<int64_t> Displacements(const std::vector<int64_t>& counts) {
  std::vector<int64_t> places(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), places.begin(), int64_t{0});
  return places;
}

}  // namespace

std::vector<int64_t> ChunkSizes(int64_t whole, int parts) {
  const int64_t chunk = (whole + parts - 1) / parts;
  std::vector<int64_t> sizes(parts);
  for (int i = 0; i < parts; ++i) sizes[i] = std::clamp<int64_t>(whole - i * chunk, 0, chunk);
  return sizes;
}

TensorCall::TensorCall(TensorCall&& other) noexcept
    : work_(std::move(other.work_)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      waits_(std::exchange(other.waits_, false)) {}

TensorCall& TensorCall::operator=(TensorCall&& other) noexcept {
  std::swap(work_, other.work_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  std::swap(waits_, other.waits_);
  return *this;
}

TensorCall::~TensorCall() {
  if (waits_) static_cast<void>(work_.Wait());  // an error is sticky: the group's next call has it
}

at::Tensor TensorCall::Wait() {
  waits_ = false;
  const absl::Status status = AwaitOnStream(work_, out_);
  ThrowUnlessAllCame(status, "a collective on a tensor");
  if (out_.is_cuda() && !work_.Done()) KeepUntilDone({std::move(work_), in_, out_});
  in_ = at::Tensor();
  return std::move(out_);
}

TensorCall StartAllReduce(const at::Tensor& x, comm::Communicator& group, comm::ReduceOp op,
                          std::source_location site) {
  TORCH_CHECK(!x.is_complex() || op == comm::ReduceOp::kSum || op == comm::ReduceOp::kAvg,
              "all-reduce: complex numbers can be added up and averaged only");
  at::Tensor in = Plain(x);
  at::Tensor out = at::empty_like(in);
  Work work = AllReduce(group, AsBuffer(in), AsBuffer(out), op, /*tag=*/0, site);
  return {std::move(work), std::move(in), std::move(out)};
}

TensorCall StartAllGather(const at::Tensor& x, comm::Communicator& group, const std::vector<int64_t>& sizes,
                          std::source_location site) {
  at::Tensor in = Plain(x);
  CheckBlocks("all-gather", in, sizes.at(group.rank()), group, sizes);
  at::Tensor out = WithRows(in, Sum(sizes));
  const comm::CallOptions options = {.timeout = default_timeout()};
  Work work;
  if (AllEqual(sizes)) {
    work = AllGather(group, AsBuffer(in), AsBuffer(out), options, site);
  } else {
    const std::vector<int64_t> counts = Times(sizes, RowOf(in)), places = Displacements(counts);
    work = AllGatherV(group, AsBuffer(in), AsBuffer(out), {.counts = counts, .displacements = places}, options, site);
  }
  return {std::move(work), std::move(in), std::move(out)};
}

TensorCall StartReduceScatter(const at::Tensor& x, comm::Communicator& group, const std::vector<int64_t>& sizes,
                              std::source_location site) {
  at::Tensor in = Plain(x);
  CheckBlocks("reduce-scatter", in, Sum(sizes), group, sizes);
  at::Tensor out = WithRows(in, sizes.at(group.rank()));
  Work work;
  if (AllEqual(sizes)) {
    work = ReduceScatter(group, AsBuffer(in), AsBuffer(out), comm::ReduceOp::kSum, /*tag=*/0, site);
  } else {
    const std::vector<int64_t> counts = Times(sizes, RowOf(in)), places = Displacements(counts);
    work = ReduceScatterV(group, AsBuffer(in), {.counts = counts, .displacements = places}, AsBuffer(out),
                          comm::ReduceOp::kSum, /*tag=*/0, site);
  }
  return {std::move(work), std::move(in), std::move(out)};
}

TensorCall StartAllToAll(const at::Tensor& x, comm::Communicator& group, const std::vector<int64_t>& in_sizes,
                         const std::vector<int64_t>& out_sizes, std::source_location site) {
  at::Tensor in = Plain(x);
  CheckBlocks("all-to-all", in, Sum(in_sizes), group, in_sizes);
  at::Tensor out = WithRows(in, Sum(out_sizes));
  const std::vector<int64_t> in_counts = Times(in_sizes, RowOf(in)), in_places = Displacements(in_counts);
  const std::vector<int64_t> out_counts = Times(out_sizes, RowOf(in)), out_places = Displacements(out_counts);
  Work work = AllToAllV(group, AsBuffer(in), {.counts = in_counts, .displacements = in_places}, AsBuffer(out),
                        {.counts = out_counts, .displacements = out_places}, site);
  return {std::move(work), std::move(in), std::move(out)};
}

}  // namespace cohort::trainer
