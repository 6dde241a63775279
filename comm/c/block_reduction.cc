#include "cohort/comm/c/block_reduction.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/group/mix_hash.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::comm::c {
namespace {

// Inputs of at most this many bytes together are gathered whole.
constexpr int64_t kShortBytes = 16 * 1024;

// One reduction whose arguments are right.
class Combiner {
 public:
  Combiner(Communicator& group, const BlockReduction& reduction, const PreparedOptions& prepared)
      : group_(group),
        reduction_(reduction),
        prepared_(prepared),
        options_(prepared.options),
        size_(group.size()),
        rank_(group.rank()),
        bytes_(prepared.elements.block_bytes),
        deadline_(runtime::Deadline::After(prepared.options.timeout)) {
    options_.tag = Identity();
  }

  cohort_status Run(runtime::Work* work, Kept* needs);

 private:
  bool ToAll() const { return reduction_.kind == CollectiveKind::kAllReduce; }
  bool Scatters() const { return !ToAll() && reduction_.kind != CollectiveKind::kReduce; }
  uint64_t Identity() const;
  absl::Status Explained(const absl::Status& status) const;
  void CutIntoParts();
  absl::Status Collect(bool whole);
  absl::Status Combine(int64_t blocks);
  std::chrono::nanoseconds TimeLeft() const;
  ConstBuffer BytesOfIn() const { return {reduction_.in, in_bytes_, DataType::kUint8}; }

  Communicator& group_;
  const BlockReduction& reduction_;
  const PreparedOptions& prepared_;
  CallOptions options_;
  const int size_;
  const int rank_;
  const int64_t bytes_;  // of a block
  const runtime::Deadline deadline_;
  // The parts of the input in bytes; rank r combines part r.
  std::vector<int64_t> part_bytes_;
  std::vector<int64_t> part_places_;
  int64_t in_bytes_ = 0;
  std::shared_ptr<std::byte[]> operands_;  // one after another, in the order of ranks; the first becomes the result
};

// The members' calls below are compared by kind, bytes and tag. So the tag stands for all that makes this reduction.
uint64_t Combiner::Identity() const {
  uint64_t hash = MixHash(prepared_.tag, static_cast<uint64_t>(reduction_.kind));
  hash = MixHash(hash, static_cast<uint64_t>(bytes_));
  hash = MixHash(hash, static_cast<uint64_t>(int64_t{reduction_.root}));
  hash = MixHash(hash, prepared_.user->ForNumbers()->commutative ? 1 : 2);
  for (const char character : prepared_.user->name()) hash = MixHash(hash, static_cast<unsigned char>(character));
  return hash;
}

// Says beside the call below which reduction it belongs to.
absl::Status Combiner::Explained(const absl::Status& status) const {
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::FailedPreconditionError(std::string(status.message()) + "; on this rank it is a part of cohort_" +
                                       reduction_.function + "(" + prepared_.user->name() + ", " +
                                       TextOf(prepared_.note()) + ")");
}

void Combiner::CutIntoParts() {
  int64_t place = 0;
  for (int r = 0; r < size_; ++r) {
    int64_t blocks = reduction_.count;
    if (reduction_.counts != nullptr) {
      blocks = reduction_.counts[r];
    } else if (!Scatters()) {
      const auto begin = static_cast<__int128>(reduction_.count) * r / size_;
      blocks = static_cast<int64_t>(static_cast<__int128>(reduction_.count) * (r + 1) / size_ - begin);
    }
    if (reduction_.displacements != nullptr) place = Scaled(reduction_.displacements[r], bytes_);
    part_bytes_.push_back(blocks * bytes_);
    part_places_.push_back(place);
    if (blocks == 0) continue;  // it may lie anywhere
    place += blocks * bytes_;
    in_bytes_ = std::max(in_bytes_, place);
  }
}

absl::Status Combiner::Collect(bool whole) {
  const int64_t own = whole ? in_bytes_ : part_bytes_[static_cast<size_t>(rank_)];
  const bool wanted = !whole || ToAll() || rank_ == reduction_.root;
  int64_t all = 0;
  if (__builtin_mul_overflow(own, int64_t{size_}, &all)) throw std::bad_alloc();
  if (wanted) operands_ = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(all));
  const Buffer operands(operands_.get(), wanted ? all : 0, DataType::kUint8);
  if (whole && ToAll()) return group_.AllGather(BytesOfIn(), operands, options_, prepared_.site).Wait();
  if (whole) return group_.Gather(BytesOfIn(), operands, reduction_.root, options_, prepared_.site).Wait();
  const std::vector<int64_t> from_each(static_cast<size_t>(size_), own);
  return group_.AllToAllV(BytesOfIn(), {part_bytes_, part_places_}, operands, {from_each, {}}, options_, prepared_.site)
      .Wait();
}

absl::Status Combiner::Combine(int64_t blocks) {
  std::byte* const result = operands_.get();
  if (blocks == 0) return absl::OkStatus();
  std::string failed;
  try {
    for (int r = 1; r < size_; ++r) {
      prepared_.user->Combine(result, result, result + r * blocks * bytes_, blocks, COHORT_BLOCK(bytes_));
    }
    return absl::OkStatus();
  } catch (const std::exception& error) {
    failed = error.what();
  } catch (...) {
    failed = "an exception of an unknown type";
  }
  group_.Abort("its reduction function " + prepared_.user->name() + " failed: " + failed);
  return absl::InternalError("the reduction function " + prepared_.user->name() + " failed: " + failed);
}

// Both calls have the time of one, and an eighth more at most: the rest is rounded up to eighths, since calls of other
// timeouts are other calls to the group, which remembers few.
std::chrono::nanoseconds Combiner::TimeLeft() const {
  constexpr int kParts = 8;
  const std::chrono::nanoseconds all = prepared_.options.timeout;
  const std::chrono::nanoseconds part = std::max(all / kParts, std::chrono::nanoseconds(1));
  const auto whole_parts = deadline_.left() / part;
  return whole_parts >= kParts ? all : std::min(all, (whole_parts + 1) * part);
}

cohort_status Combiner::Run(runtime::Work* work, Kept* needs) {
  CutIntoParts();
  const bool whole = !Scatters() && in_bytes_ <= kShortBytes / size_;
  if (const absl::Status collected = Collect(whole); !collected.ok()) return Fail(Explained(collected));
  const int64_t own = whole ? in_bytes_ : part_bytes_[static_cast<size_t>(rank_)];
  if (operands_ == nullptr) return COHORT_OK;  // the result is wanted elsewhere
  if (const absl::Status combined = Combine(own / bytes_); !combined.ok()) return Fail(combined);
  if (whole || Scatters()) {
    if (own > 0) std::memcpy(reduction_.out, operands_.get(), static_cast<size_t>(own));
    return COHORT_OK;
  }
  needs->push_back(operands_);
  const ConstBuffer part(operands_.get(), own, DataType::kUint8);
  const Buffer out(reduction_.out, in_bytes_, DataType::kUint8);
  const BlockLayout parts{part_bytes_, part_places_};
  options_.timeout = TimeLeft();
  *work = ToAll() ? group_.AllGatherV(part, out, parts, options_, prepared_.site)
                  : group_.GatherV(part, out, parts, reduction_.root, options_, prepared_.site);
  return COHORT_OK;
}

// The checks that the layers below make of such a call on bytes. Fills nothing that is used.
absl::Status Check(const Communicator& group, const BlockReduction& reduction, const PreparedOptions& prepared) {
  const int size = group.size();
  const int64_t bytes = prepared.elements.block_bytes;
  int64_t in_count = reduction.count;
  if (reduction.kind == CollectiveKind::kReduceScatter) in_count = Scaled(in_count, size);
  CallArguments arguments = {reduction.kind,
                             prepared.In(reduction.in, in_count),
                             prepared.Out(reduction.out, reduction.count),
                             ReduceOp::kUser,
                             reduction.root,
                             -1,
                             prepared.site};
  CollectiveRequest request;
  if (reduction.kind != CollectiveKind::kReduceScatterV) {
    return MakeRequest(arguments, group.rank(), size, &request);
  }
  Blocks blocks;
  if (Blocks::Read(reduction.function, "counts", reduction.counts, reduction.displacements, size, bytes, &blocks) !=
      COHORT_OK) {
    return absl::InvalidArgumentError(cohort_last_error());
  }
  arguments.in.count = blocks.extent();
  arguments.out.count = blocks.count(group.rank());
  BlockTable table;
  return MakeUnequalRequest(arguments, blocks.layout(), {}, group.rank(), size, &table, &request);
}

}  // namespace

cohort_status ReduceBlocks(Communicator& group, const BlockReduction& reduction, const PreparedOptions& prepared,
                           runtime::Work* work, Kept* needs) {
  if (prepared.memory != MemoryKind::kHost) {
    return Invalid(reduction.function, "functions of cohort_op_create combine host memory only");
  }
  if (!prepared.options.algorithm.empty()) {
    return Invalid(reduction.function, "options->algorithm is " + prepared.options.algorithm +
                                           ", and blocks of other than 1, 2, 4 or 8 bytes are reduced in one way");
  }
  if (const absl::Status right = Check(group, reduction, prepared); !right.ok()) return Fail(right);
  try {
    return Combiner(group, reduction, prepared).Run(work, needs);
  } catch (const std::bad_alloc&) {
    group.Abort("it has no memory for a reduction of blocks");  // the others would wait for it
    throw;
  }
}

}  // namespace cohort::comm::c
