#include "cohort/comm/run/direct_steps.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "cohort/comm/reduce/placed_fold.h"
#include "cohort/runtime/base/cpu_cache.h"

namespace cohort::comm {
namespace {

// Stores past the cache spare the read of the line that is overwritten, but the data are then in no cache. They pay
// where what a rank touches in one operation does not fit into the caches near it: below, both buffers of a caller who
// repeats himself are still there. (Measured on a Xeon with 2 MiB of level 2: at 2 MiB they lose a quarter, at 4 MiB
// they gain as much. On an EPYC with 16 MiB of level 3 for each CPU they lose up to two thirds below 12 MiB.)
// Folds into the own output gain less, and what they gain a caller who reads on at once pays back, until outputs are
// too large for that.
constexpr size_t kFoldToSelfFrom = 8;  // times what is near

size_t NearBytesHere() {
  static const size_t bytes = runtime::NearBytes(runtime::ReadCpuCaches());
  return bytes;
}

// Every rank stores its own blocks into the others' outputs.
bool Gathers(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather;
}

// Staging memory should stay in the cache between the copy out of the other process and the fold.
constexpr size_t kStagingBytes = 512 << 10;
constexpr size_t kLeastPiece = 32 << 10;

}  // namespace

DirectSteps::DirectSteps(int rank, int size) : rank_(rank), size_(size), near_bytes_(NearBytesHere()) {}

void DirectSteps::Start(const Plan& plan, const PlanBinding& binding, std::byte* const* buffers) {
  plan_ = &plan;
  binding_ = &binding;
  buffers_ = buffers;
  phase_ = Phase::kNew;
  diverted_ = false;
}

Progress DirectSteps::Run(const Step& step, Fanout* fanout) {
  Progress progress;
  switch (step.kind) {
    case StepKind::kOpen:
      progress = Open(fanout);
      break;
    case StepKind::kMeet:
      progress = Exchange(fanout, false);
      break;
    default:
      progress = RunFold(step);
  }
  if (progress == Progress::kDone) phase_ = Phase::kNew;
  return progress;
}

Progress DirectSteps::Fail(absl::Status status, int peer) {
  failure_.status = std::move(status);
  failure_.peer = peer;
  return Progress::kFailed;
}

size_t DirectSteps::BytesOf(BufferId buffer, int rank) const {
  PlanRequest request = RequestOf(*plan_);
  request.rank = rank;
  return static_cast<size_t>(ChunksOf(buffer, request) / plan_->pieces) * binding_->count * binding_->element_bytes;
}

size_t DirectSteps::BytesOf(const Step& fold) const {
  const Slice& slice = SourcesOf(*plan_, fold)[0].slice;
  const auto pieces = static_cast<uint32_t>(plan_->pieces);
  const auto first = static_cast<uint32_t>(slice.first);
  return binding_->OffsetOf(first + static_cast<uint32_t>(slice.chunks), pieces) - binding_->OffsetOf(first, pieces);
}

Progress DirectSteps::Open(Fanout* fanout) {
  memory_ = fanout == nullptr ? nullptr : fanout->memory();
  const bool reduces = std::any_of(plan_->lanes[0].steps.begin(), plan_->lanes[0].steps.end(),
                                   [](const Step& step) { return step.sources > 1; });
  if (memory_ == nullptr || fanout->max_bytes() < sizeof(Announcement) || (reduces && binding_->fold == nullptr)) {
    diverted_ = true;  // as all members find
    return Progress::kDone;
  }
  if (phase_ == Phase::kNew) {
    bool reaches = false;
    if (memory_->ReachesPrivate(&reaches, &waiting_for_) != Progress::kDone) return Progress::kBlocked;
    waiting_for_ = -1;
    const auto name = [&](BufferId buffer, const void* data) {
      const size_t bytes = BytesOf(buffer, rank_);
      return bytes == 0 ? MemoryName{.place = 0, .shared = 1} : memory_->NameOf(data, bytes);
    };
    own_ = {name(BufferId::kIn, binding_->in), name(BufferId::kOut, binding_->out), reaches ? 1u : 0u};
    announced_.resize(static_cast<size_t>(size_));
    announced_[static_cast<size_t>(rank_)] = own_;
  }
  const Progress progress = Exchange(fanout, true);
  return progress == Progress::kDone ? Decide(*memory_) : progress;
}

// Publishes one line and takes those of all others.
Progress DirectSteps::Exchange(Fanout* fanout, bool announce) {
  bool moved = false;
  const auto expect = [&] {
    receive_.data =
        announce ? reinterpret_cast<std::byte*>(&announced_[static_cast<size_t>(PeerAfter(received_))]) : nullptr;
    receive_.bytes = announce ? sizeof(Announcement) : 0;
    receive_.reduce = nullptr;
    receive_.element_bytes = 1;
    receive_.signature = binding_->signature;
    receive_.call = binding_->call;
    receive_.moved = 0;
    receive_.state = nullptr;
    receive_.mismatch = false;
  };
  if (phase_ == Phase::kNew) {
    send_.data = announce ? reinterpret_cast<const std::byte*>(&own_) : nullptr;
    send_.bytes = announce ? sizeof(Announcement) : 0;
    send_.signature = binding_->signature;
    send_.call = binding_->call;
    send_.moved = 0;
    send_.state = nullptr;
    published_ = false;
    received_ = 0;
    expect();
    phase_ = Phase::kReceiving;
  }
  if (!published_) {
    const Progress progress = fanout->TryPublish(send_);
    if (progress == Progress::kFailed) return Fail(std::move(send_.error), -1);
    published_ = progress == Progress::kDone;
    moved = progress != Progress::kBlocked;
  }
  while (received_ < size_ - 1) {
    const int peer = PeerAfter(received_);
    const Progress progress = fanout->TryRecv(peer, receive_);
    if (progress == Progress::kFailed) {
      if (receive_.mismatch) failure_.cause = RunnerFailure::Cause::kOtherCall;
      failure_.peer_call = receive_.peer_call;
      return Fail(std::move(receive_.error), peer);
    }
    if (progress != Progress::kDone) {
      return moved || progress == Progress::kMoved ? Progress::kMoved : Progress::kBlocked;
    }
    moved = true;
    ++received_;
    if (received_ < size_ - 1) expect();
  }
  if (!published_) return moved ? Progress::kMoved : Progress::kBlocked;
  return Progress::kDone;
}

// Whether data would be stored into other ranks' private memory that a message fetches from a window, without the
// kernel's help: two to three times as quick.
bool DirectSteps::FetchesFaster() const {
  if (!Gathers(EqualBlocksForm(plan_->kind))) return false;
  const auto shared = [](const MemoryName& name) { return name.shared == 1; };
  return std::all_of(announced_.begin(), announced_.end(), [&](const auto& each) { return shared(each.in); }) &&
         !std::all_of(announced_.begin(), announced_.end(), [&](const auto& each) { return shared(each.out); });
}

// Every member comes to the same conclusion, because it looks only at what all have announced.
Progress DirectSteps::Decide(MemoryAccess& memory) {
  // Only what others touch need be shared: the input of a rank that scatters, the output of one that gathers.
  const CollectiveKind kind = EqualBlocksForm(plan_->kind);
  const bool read = !Gathers(kind);
  const bool written = kind != CollectiveKind::kScatter && kind != CollectiveKind::kReduceScatter;
  const bool all_shared = std::all_of(announced_.begin(), announced_.end(), [&](const Announcement& announced) {
    return (!read || announced.in.shared == 1) && (!written || announced.out.shared == 1);
  });
  const bool all_reach = std::all_of(announced_.begin(), announced_.end(),
                                     [](const Announcement& announced) { return announced.reaches_private == 1; });
  if ((!all_shared && !all_reach) || FetchesFaster()) {
    diverted_ = true;
    return Progress::kDone;
  }
  in_.assign(static_cast<size_t>(size_), nullptr);
  out_.assign(static_cast<size_t>(size_), nullptr);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto index = static_cast<size_t>(peer);
    const Announcement& announced = announced_[index];
    const auto resolve = [&](BufferId buffer, const MemoryName& name, std::byte** where) {
      const size_t bytes = BytesOf(buffer, peer);
      if (bytes == 0 || name.shared != 1) return true;
      *where = memory.Resolve(peer, name, bytes);
      return *where != nullptr;
    };
    if (!resolve(BufferId::kIn, announced.in, &in_[index]) || !resolve(BufferId::kOut, announced.out, &out_[index])) {
      return Fail(absl::InternalError("group rank " + std::to_string(peer) +
                                      " named memory of the node segment that is not there: its side is damaged, or "
                                      "it freed a window that an operation still uses"),
                  peer);
    }
  }
  touched_ = 0;
  for (const Step& step : plan_->lanes[0].steps) {
    if (step.kind == StepKind::kFold) touched_ += BytesOf(step) * static_cast<size_t>(step.sources + step.targets);
  }
  return Progress::kDone;
}

DirectSteps::Operand DirectSteps::OperandOf(const RankSlice& slice) const {
  const size_t offset =
      binding_->OffsetOf(static_cast<uint32_t>(slice.slice.first), static_cast<uint32_t>(plan_->pieces));
  Operand operand{.rank = slice.rank};
  if (slice.rank == rank_) {
    operand.data = buffers_[static_cast<int>(slice.slice.buffer)] + offset;
    return operand;
  }
  const auto rank = static_cast<size_t>(slice.rank);
  const bool in = slice.slice.buffer == BufferId::kIn;
  std::byte* base = in ? in_[rank] : out_[rank];
  if (base != nullptr) {
    operand.data = base + offset;
  } else {
    operand.address = (in ? announced_[rank].in : announced_[rank].out).place + offset;
  }
  return operand;
}

// Which targets are stored past the cache; those last, and private ones after them.
void DirectSteps::ChooseStores() {
  const bool all_mapped =
      std::none_of(sources_.begin(), sources_.end(), [](const Operand& operand) { return operand.data == nullptr; }) &&
      std::none_of(targets_.begin(), targets_.end(), [](const Operand& operand) { return operand.data == nullptr; });
  const bool to_others = touched_ > near_bytes_;
  // Fetched data are folded in the own output, and the kernel writes from there.
  const bool to_self = sources_.size() == 1 ? to_others : all_mapped && touched_ >= kFoldToSelfFrom * near_bytes_;
  for (Operand& target : targets_) {
    const bool was_read = std::any_of(sources_.begin(), sources_.end(),
                                      [&](const Operand& source) { return source.data == target.data; });
    target.streamed = target.data != nullptr && !was_read && (target.rank == rank_ ? to_self : to_others);
  }
  // Sorted by insertion, since a stable sort of the library allocates.
  const auto before = [](const Operand& a, const Operand& b) {
    const auto order = [](const Operand& target) { return target.data == nullptr ? 2 : target.streamed ? 1 : 0; };
    return order(a) < order(b);
  };
  for (auto at = targets_.begin(); at != targets_.end(); ++at) {
    std::rotate(std::upper_bound(targets_.begin(), at, *at, before), at, at + 1);
  }
}

// False: there is no memory for staging.
bool DirectSteps::PrepareFold(const Step& step) {
  const std::span<const RankSlice> sources = SourcesOf(*plan_, step);
  total_ = BytesOf(step);
  moved_ = 0;
  if (total_ == 0) return true;
  sources_.clear();
  targets_.clear();
  for (const RankSlice& source : sources) sources_.push_back(OperandOf(source));
  for (const RankSlice& target : TargetsOf(*plan_, step)) targets_.push_back(OperandOf(target));
  ChooseStores();

  const auto fetched = static_cast<size_t>(
      std::count_if(sources_.begin(), sources_.end(), [](const Operand& o) { return o.data == nullptr; }));
  piece_ = memory_->piece_bytes();
  if (fetched > 0) piece_ = std::min(piece_, std::max(kLeastPiece, kStagingBytes / fetched));
  const size_t many = (sources_.size() + targets_.size()) / 4;
  if (many > 1) piece_ = std::min(piece_, std::max(kLeastPiece, memory_->piece_bytes() / many));
  piece_ = std::max(piece_ / binding_->element_bytes, size_t{1}) * binding_->element_bytes;
  // One more for the result, which may have no place in this process.
  const size_t needed = (fetched + 1) * std::min(piece_, total_);
  const bool stages = fetched > 0 || (sources_.size() > 1 && targets_[0].data == nullptr);
  if (stages && staging_bytes_ < needed) {
    staging_.reset(new (std::nothrow) std::byte[needed]);
    staging_bytes_ = staging_ == nullptr ? 0 : needed;
    return staging_ != nullptr;
  }
  return true;
}

Progress DirectSteps::RunFold(const Step& step) {
  if (phase_ == Phase::kNew) {
    if (!PrepareFold(step)) {
      return Fail(absl::ResourceExhaustedError("no memory to fetch other ranks' data into: use windows "
                                               "(AllocateWindow), or another algorithm"),
                  -1);
    }
    phase_ = Phase::kFolding;
  }
  if (total_ == 0) return Progress::kDone;
  if (!memory_->Enter()) return Progress::kBlocked;
  const Progress progress = FoldPiece(step, moved_, std::min(piece_, total_ - moved_));
  if (!memory_->Leave() && progress != Progress::kFailed) return Progress::kBlocked;
  if (progress != Progress::kDone) return progress;
  moved_ += std::min(piece_, total_ - moved_);
  return moved_ == total_ ? Progress::kDone : Progress::kMoved;
}

Progress DirectSteps::FoldPiece(const Step& step, size_t at, size_t bytes) {
  std::byte* free = staging_.get();
  const auto take = [&] { return std::exchange(free, free + std::min(piece_, total_)); };
  ins_.clear();
  outs_.clear();
  size_t cached = 0;
  for (const Operand& target : targets_) {
    if (target.data == nullptr) break;
    outs_.push_back(target.data + at);
    if (!target.streamed) ++cached;
  }
  const size_t mapped = outs_.size();
  const bool free_place =
      step.sources == 1 ? mapped > 0
                        : cached > 0 && targets_[0].rank == rank_ &&
                              std::none_of(sources_.begin(), sources_.end(),
                                           [&](const Operand& source) { return source.data == targets_[0].data; });
  std::byte* place = free_place ? targets_[0].data + at : nullptr;
  for (const Operand& source : sources_) {
    if (source.data != nullptr) {
      ins_.push_back(source.data + at);
      continue;
    }
    // Data that are only copied are fetched to where they belong. So is one of several operands if the own output is
    // free for it: one buffer less in the cache.
    std::byte* to = place != nullptr ? std::exchange(place, nullptr) : take();
    absl::Status error;
    const Progress read = memory_->Read(source.rank, source.address + at, to, bytes, &error);
    if (read == Progress::kFailed) return Fail(std::move(error), source.rank);
    if (read != Progress::kDone) return read;
    ins_.push_back(to);
  }
  if (step.sources > 1 && mapped == 0) {
    outs_.push_back(take());
    cached = 1;
  }
  const auto* result = static_cast<const std::byte*>(step.sources > 1 ? outs_[0] : ins_[0]);
  PlacedFold({.ins = ins_,
              .outs = outs_,
              .cached = cached,
              .count = bytes / binding_->element_bytes,
              .element_bytes = binding_->element_bytes,
              .kernel = binding_->fold});
  for (size_t i = mapped; i < targets_.size(); ++i) {
    absl::Status error;
    const Progress written = memory_->Write(targets_[i].rank, targets_[i].address + at, result, bytes, &error);
    if (written == Progress::kFailed) return Fail(std::move(error), targets_[i].rank);
    if (written != Progress::kDone) return written;
  }
  return Progress::kDone;
}

void DirectSteps::AddWaitingFor(std::vector<int>* ranks) const {
  if (waiting_for_ >= 0) ranks->push_back(waiting_for_);
  if (phase_ != Phase::kReceiving) return;
  for (int i = received_; i < size_ - 1; ++i) ranks->push_back(PeerAfter(i));
}

}  // namespace cohort::comm
