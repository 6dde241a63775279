// The variable-count forms as cases: blocks of unequal lengths, with and without gaps between them.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "tests/comm/conformance/collective_case.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CollectiveKind;
using comm::ConstBuffer;

uint64_t Scramble(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  return value ^ (value >> 27);
}

// How one buffer of a call of unequal blocks is cut.
struct Cut {
  bool whole = false;  // a block for each rank
  bool dense = false;
  std::vector<int64_t> counts;
  std::vector<int64_t> places;
  int64_t extent = 0;

  comm::BlockLayout Layout() const {
    return {counts, dense ? std::span<const int64_t>() : std::span<const int64_t>(places)};
  }
  bool Covers(size_t element) const {
    for (size_t b = 0; b < counts.size(); ++b) {
      const auto begin = static_cast<size_t>(places[b]);
      if (element >= begin && element < begin + static_cast<size_t>(counts[b])) return true;
    }
    return false;
  }
};

// Elements of a block, between none and the case's count: of rank `of`, or from `of` to `to` in an all-to-all.
int64_t UnequalLength(const CollectiveCase& the_case, int of, int to) {
  if (the_case.kind != CollectiveKind::kAllToAllV) to = 0;
  if (the_case.in_place && to > of) std::swap(of, to);  // both directions of a pair are equally long
  const uint64_t random = Scramble(the_case.salt * 7919 + static_cast<uint64_t>(of) * 257 + static_cast<uint64_t>(to));
  return static_cast<int64_t>(random % static_cast<uint64_t>(the_case.count + 1));
}

// Blocks lie one after another, or with gaps from the last to the first, or with gaps in an order of the rank's own.
Cut CutOf(const CollectiveCase& the_case, bool in, int blocks, int rank, int size) {
  const CollectiveKind kind = the_case.kind;
  Cut cut;
  if (blocks == 0) return cut;
  cut.whole = kind == CollectiveKind::kAllToAllV ||
              in == (kind == CollectiveKind::kScatterV || kind == CollectiveKind::kReduceScatterV);
  cut.dense = the_case.salt % 3 == 0 || !cut.whole;
  const int count = cut.whole ? size : 1;
  cut.places.resize(static_cast<size_t>(count));
  for (int b = 0; b < count; ++b) {
    cut.counts.push_back(!cut.whole ? UnequalLength(the_case, rank, 0)
                         : in       ? UnequalLength(the_case, kind == CollectiveKind::kAllToAllV ? rank : b, b)
                                    : UnequalLength(the_case, b, rank));
  }
  for (int i = 0; i < count; ++i) {
    const int b = cut.dense ? i : (the_case.salt % 3 == 1 ? count - 1 - i : (i + rank) % count);
    cut.places[static_cast<size_t>(b)] = cut.extent;
    cut.extent += cut.counts[static_cast<size_t>(b)] + (cut.dense ? 0 : 2);
  }
  return cut;
}

constexpr int64_t kBlockStride = 5000;  // tells the values of a rank's blocks apart

void PutBlock(const CollectiveCase& the_case, const Cut& cut, size_t block, const std::vector<std::byte>& bytes,
              std::vector<std::byte>& image) {
  const size_t begin = static_cast<size_t>(cut.places[block]) * comm::SizeOf(the_case.dtype);
  std::copy(bytes.begin(), bytes.end(), image.begin() + static_cast<ptrdiff_t>(begin));
}

std::vector<std::byte> ImageOf(const CollectiveCase& the_case, const Cut& cut, int rank, std::byte fill) {
  std::vector<std::byte> image(static_cast<size_t>(cut.extent) * comm::SizeOf(the_case.dtype), fill);
  for (size_t b = 0; b < cut.counts.size(); ++b) {
    PutBlock(the_case, cut, b, InputOf(the_case, rank, static_cast<int64_t>(b) * kBlockStride, cut.counts[b]), image);
  }
  return image;
}

// The serial reference for unequal blocks.
std::vector<std::byte> ExpectedImage(const CollectiveCase& the_case, const Cut& cut, int rank, int size) {
  std::vector<std::byte> image(static_cast<size_t>(cut.extent) * comm::SizeOf(the_case.dtype), std::byte{0x5a});
  const int64_t own = int64_t{rank} * kBlockStride;
  for (size_t b = 0; b < cut.counts.size(); ++b) {
    std::vector<std::byte> block;
    switch (the_case.kind) {
      case CollectiveKind::kScatterV:
        block = InputOf(the_case, the_case.root, own, cut.counts[b]);
        break;
      case CollectiveKind::kReduceScatterV:
        block = CombinedOf(the_case, size, own, cut.counts[b]);
        break;
      case CollectiveKind::kAllToAllV:
        block = InputOf(the_case, static_cast<int>(b), own, cut.counts[b]);
        break;
      default:
        block = InputOf(the_case, static_cast<int>(b), 0, cut.counts[b]);
    }
    PutBlock(the_case, cut, b, block, image);
  }
  return image;
}

// Makes the call, on a communicator or as one of a batch. The caller's lists are gone when it returns.
template <typename Target>
decltype(auto) Issue(Target& on, const CollectiveCase& c, const ConstBuffer& source, Cut in_cut, const Buffer& target,
                     Cut out_cut, const comm::CallOptions& options) {
  switch (c.kind) {
    case CollectiveKind::kGatherV:
      return on.GatherV(source, target, out_cut.Layout(), c.root, options);
    case CollectiveKind::kScatterV:
      return on.ScatterV(source, in_cut.Layout(), target, c.root, options);
    case CollectiveKind::kAllGatherV:
      return on.AllGatherV(source, target, out_cut.Layout(), options);
    case CollectiveKind::kReduceScatterV:
      return on.ReduceScatterV(source, in_cut.Layout(), target, c.op, options);
    default:
      return on.AllToAllV(source, in_cut.Layout(), target, out_cut.Layout(), options);
  }
}

}  // namespace

int PendingCase::StartUnequal(comm::Communicator& communicator) {
  const CollectiveCase& c = case_;
  const size_t element = comm::SizeOf(c.dtype);
  const comm::BufferBlocks used = comm::BlocksOf(c.kind, rank_ == c.root, size_);
  const Cut in_cut = CutOf(c, true, used.in, rank_, size_);
  const Cut out_cut = CutOf(c, false, used.out, rank_, size_);
  const bool one_buffer = c.in_place && used.in > 0 && used.out > 0;
  if (used.in > 0) input_ = ImageOf(c, in_cut, rank_, std::byte{0});
  if (used.out > 0) expected_ = ExpectedImage(c, out_cut, rank_, size_);
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  if (!one_buffer) {
    if (used.in > 0) in_ = std::make_unique<Memory>(input_.size(), 0);
    if (used.out > 0) out_ = std::make_unique<Memory>(expected_.size(), 0x5a);
    in = in_ != nullptr ? in_->data() : nullptr;
    out = out_ != nullptr ? out_->data() : nullptr;
    if (in != nullptr && !input_.empty()) std::memcpy(in, input_.data(), input_.size());
  } else {
    const bool in_larger = in_cut.whole && !out_cut.whole;
    const auto own = static_cast<size_t>(rank_);
    out_ = std::make_unique<Memory>(in_larger ? input_.size() : expected_.size(), 0x5a);
    in = out = out_->data();
    if (in_larger) {
      std::vector<std::byte> whole = input_;
      out += static_cast<size_t>(in_cut.places[own]) * element;
      std::copy(expected_.begin(), expected_.end(), whole.begin() + (out - in));
      expected_ = std::move(whole);
    } else if (!in_cut.whole) {
      in += static_cast<size_t>(out_cut.places[own]) * element;
    }
    if (!input_.empty()) std::memcpy(in, input_.data(), input_.size());
    if (c.kind == CollectiveKind::kAllToAllV) {  // the gaps hold what was put there
      for (size_t i = 0; i < expected_.size(); ++i) {
        if (!out_cut.Covers(i / element)) expected_[i] = input_[i];
      }
    }
  }
  const ConstBuffer source(in, in_cut.extent, c.dtype);
  const Buffer target(out, out_cut.extent, c.dtype);
  const comm::CallOptions options = OptionsOf(c, rank_);
  if (batch_ != nullptr) {
    Issue(*batch_, c, source, in_cut, target, out_cut, options);
  } else {
    work_ = Issue(communicator, c, source, in_cut, target, out_cut, options);
  }
  return 0;
}

}  // namespace cohort::testing
