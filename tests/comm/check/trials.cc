#include "tests/comm/check/trials.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/request.h"
#include "cohort/comm/types.h"

namespace {

// The damage that is to come.
struct Damage {
  int after = -1;  // results that are left alone; -1: none is damaged
  uint64_t bit = 0;
};
Damage damage;

void Flip(const cohort::comm::CollectiveRequest& request, int size) {
  using cohort::comm::CollectiveKind;
  const size_t element = cohort::comm::SizeOf(request.dtype);
  auto* out = static_cast<std::byte*>(request.out);
  size_t bytes = static_cast<size_t>(request.count) * element;
  if (request.kind == CollectiveKind::kAllGather) bytes *= static_cast<size_t>(size);
  if (request.blocks != nullptr) {
    const auto& counts = request.blocks->out_counts;
    const auto block = static_cast<size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    out += static_cast<size_t>(request.blocks->out_places[block]) * element;
    bytes = static_cast<size_t>(counts[block]) * element;
  }
  const uint64_t bit = damage.bit % (8 * bytes);
  out[bit / 8] ^= std::byte{1} << bit % 8;
}

}  // namespace

// NOLINTBEGIN: the linker's names
extern "C" uint64_t __real__ZN6cohort4comm10HashResultERKNS0_17CollectiveRequestEi(
    const cohort::comm::CollectiveRequest& request, int size);
extern "C" uint64_t __wrap__ZN6cohort4comm10HashResultERKNS0_17CollectiveRequestEi(
    const cohort::comm::CollectiveRequest& request, int size) {
  if (damage.after >= 0 && damage.after-- == 0) Flip(request, size);
  return __real__ZN6cohort4comm10HashResultERKNS0_17CollectiveRequestEi(request, size);
}
// NOLINTEND

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::DataType;
using comm::ReduceOp;
using comm::Work;

constexpr auto kBound = std::chrono::seconds(20);
constexpr int64_t kMaxCount = 8'000;
constexpr size_t kArea = size_t{8} * kMaxCount * 8;  // bytes of one buffer, of at most 8 blocks

uint64_t Draw(std::mt19937_64& random, uint64_t bound) { return random() % bound; }

// The arguments of a call, equal on all ranks.
struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t count = 1;
  DataType dtype = DataType::kFloat32;
  int root = 0;
  bool in_place = false;
  std::vector<int64_t> counts = {};  // of all-gather-v
  ReduceOp op = ReduceOp::kSum;
  comm::CallOptions options = {};  // some force an algorithm
};

// The results that must be equal on all ranks.
constexpr CollectiveKind kCompared[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllReduce,
                                        CollectiveKind::kBroadcast, CollectiveKind::kAllGather,
                                        CollectiveKind::kAllGatherV};
constexpr CollectiveKind kAll[] = {
    CollectiveKind::kAllReduce,  CollectiveKind::kBroadcast,     CollectiveKind::kAllGather,
    CollectiveKind::kAllGatherV, CollectiveKind::kReduce,        CollectiveKind::kGather,
    CollectiveKind::kScatter,    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll};

// One that any group of this size can be made to use, wherever its ranks are; empty: the selector chooses.
std::string DrawAlgorithm(std::mt19937_64& random, CollectiveKind kind, int size) {
  std::vector<std::string> fit = {"", "", ""};
  for (const comm::AlgorithmInfo& info : comm::Algorithms()) {
    const bool anywhere = !info.traits.single_copy && comm::CheckRequirements(info, size).ok();
    if (info.kind == kind && anywhere) fit.emplace_back(info.name);
  }
  return fit[Draw(random, fit.size())];
}

Call DrawCall(std::mt19937_64& random, std::span<const CollectiveKind> kinds, std::span<const DataType> types,
              int size) {
  Call call;
  call.kind = kinds[Draw(random, kinds.size())];
  call.dtype = types[Draw(random, types.size())];
  call.count = 1 + static_cast<int64_t>(Draw(random, Draw(random, 2) == 0 ? 16 : kMaxCount));
  call.root = static_cast<int>(Draw(random, static_cast<uint64_t>(size)));
  call.in_place = Draw(random, 2) == 0;
  for (int i = 0; i < size; ++i) call.counts.push_back(static_cast<int64_t>(Draw(random, kMaxCount)));
  call.counts[Draw(random, call.counts.size())] += 1;
  static constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                                      ReduceOp::kAvg};
  call.op = kOps[Draw(random, std::size(kOps))];
  call.options.algorithm = DrawAlgorithm(random, call.kind, size);
  return call;
}

// Makes the call at a line of its own, so that the error's place tells it.
Work Submit(Communicator& group, const Call& call, std::byte* in, std::byte* out) {
  const int64_t n = call.count;
  const int64_t all = n * group.size();
  const DataType type = call.dtype;
  const std::byte* const from = call.in_place ? out : in;
  const comm::CallOptions& how = call.options;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return group.AllReduce(ConstBuffer(from, n, type), Buffer(out, n, type), call.op, how);
    case CollectiveKind::kBroadcast:
      return group.Broadcast(Buffer(out, n, type), call.root, how);
    case CollectiveKind::kAllGather:
      return group.AllGather(ConstBuffer(in, n, type), Buffer(out, all, type), how);
    case CollectiveKind::kAllGatherV: {
      const int64_t own = call.counts[static_cast<size_t>(group.rank())];
      return group.AllGatherV(ConstBuffer(in, own, type), Buffer(out, kArea / comm::SizeOf(type), type),
                              {call.counts, {}}, how);
    }
    case CollectiveKind::kReduce:
      return group.Reduce(ConstBuffer(in, n, type), Buffer(out, n, type), call.op, call.root, how);
    case CollectiveKind::kGather:
      return group.Gather(ConstBuffer(in, n, type), Buffer(out, all, type), call.root, how);
    case CollectiveKind::kScatter:
      return group.Scatter(ConstBuffer(in, all, type), Buffer(out, n, type), call.root, how);
    case CollectiveKind::kReduceScatter:
      return group.ReduceScatter(ConstBuffer(in, all, type), Buffer(out, n, type), call.op, how);
    case CollectiveKind::kAllToAll:
      return group.AllToAll(ConstBuffer(in, all, type), Buffer(out, all, type), how);
    default:
      return Work::Finished(absl::UnimplementedError("no such call here"));
  }
}

// The buffers of a trial's calls: private, or in a window.
class Memory {
 public:
  static constexpr size_t kCalls = 4;
  absl::Status Make(Communicator& group, bool window) {
    if (!window) {
      own_ = std::make_unique<std::byte[]>(2 * kCalls * kArea);
      return absl::OkStatus();
    }
    absl::StatusOr<comm::Window> made = group.AllocateWindow(2 * kCalls * kArea);
    if (made.ok()) window_ = *std::move(made);
    return made.status();
  }
  std::byte* in(size_t call) const { return begin() + call * kArea; }
  std::byte* out(size_t call) const { return begin() + (kCalls + call) * kArea; }

 private:
  std::byte* begin() const { return own_ != nullptr ? own_.get() : static_cast<std::byte*>(window_.data()); }
  std::unique_ptr<std::byte[]> own_;
  comm::Window window_;
};

// A group of some of the ranks, two or more where there are two, in any order. Null on the others.
absl::StatusOr<std::unique_ptr<Communicator>> DrawGroup(std::mt19937_64& random, Communicator& world, int* size) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (size_t i = ranks.size() - 1; i > 0; --i) std::swap(ranks[i], ranks[Draw(random, i + 1)]);
  const auto least = std::min<size_t>(2, ranks.size());
  // Half of the groups have all ranks.
  if (Draw(random, 2) == 0) ranks.resize(least + Draw(random, ranks.size() - least + 1));
  *size = static_cast<int>(ranks.size());
  absl::StatusOr<std::unique_ptr<Communicator>> group = std::unique_ptr<Communicator>();
  if (std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end()) group = world.Subgroup(ranks);
  // A rank that is late would get the error of the others' calls from Subgroup.
  const absl::Status met = world.Barrier().Wait(3 * kBound);
  if (group.ok() && !met.ok()) return met;
  return group;
}

// All ranks have ended their trial: what a group leaves behind must live until nobody stores into it.
std::string Meet(Communicator& world, const std::string& wrong) {
  const absl::Status met = world.Barrier().Wait(3 * kBound);
  return wrong.empty() && !met.ok() ? met.ToString() : wrong;
}

// The group's error, which a rank may get at its next call only.
absl::Status ErrorOf(Communicator& group) {
  const auto deadline = std::chrono::steady_clock::now() + kBound;
  absl::Status status;
  while (status.ok() && std::chrono::steady_clock::now() < deadline) status = group.Barrier().Wait(kBound);
  return status;
}

std::string Check(const absl::Status& status, const std::vector<std::string>& words, uint64_t seed) {
  const std::string text = std::string(status.message());
  const std::string trial = "seed " + std::to_string(seed) + ": ";
  if (!absl::IsDataLoss(status)) return trial + "not kDataLoss: " + status.ToString();
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) return trial + "\"" + word + "\" is missing in: " + text;
  }
  return "";
}

}  // namespace

namespace {

// The calls of a trial, and the damage.
struct Plan {
  std::vector<Call> calls;
  size_t damaged = 0;
  int odd = 0;  // group rank
  bool window = false;
  bool at_once = false;  // each call is waited for
  uint64_t bit = 0;
};

Plan DrawPlan(std::mt19937_64& random, int size) {
  static constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16, DataType::kFloat16,
                                        DataType::kInt32,   DataType::kInt64,   DataType::kUint8};
  Plan plan;
  plan.odd = static_cast<int>(Draw(random, static_cast<uint64_t>(size)));
  plan.window = Draw(random, 3) == 0;
  const size_t calls = 1 + Draw(random, Memory::kCalls);
  plan.damaged = Draw(random, calls);
  plan.at_once = Draw(random, 2) == 0;
  plan.bit = random();
  for (size_t i = 0; i < calls; ++i) {
    const auto kinds = i == plan.damaged ? std::span<const CollectiveKind>(kCompared) : kAll;
    plan.calls.push_back(DrawCall(random, kinds, kTypes, size));
  }
  return plan;
}

// The words that the error must have.
std::vector<std::string> Verdict(const Communicator& group, const Plan& plan) {
  const Call& call = plan.calls[plan.damaged];
  const std::vector<int>& members = group.members();
  std::vector<std::string> words = {std::string(comm::Name(call.kind)) + "(", " at trials.cc:"};
  if (group.size() == 2) {
    const auto [low, high] = std::minmax(members[0], members[1]);
    words.push_back("results differ: rank " + std::to_string(low) + " and rank " + std::to_string(high) +
                    " have different results of ");
  } else {
    words.push_back("results differ: rank " + std::to_string(members[static_cast<size_t>(plan.odd)]) +
                    " has another result of ");
  }
  if (call.kind == CollectiveKind::kAllReduce) words.push_back("(" + std::string(comm::Name(call.op)) + ", ");
  if (call.kind != CollectiveKind::kAllGatherV) words.push_back(", " + std::to_string(call.count));
  // A window makes calls of its own.
  if (!plan.window) words.push_back(", operation " + std::to_string(plan.damaged + 1) + ")");
  return words;
}

std::string DamageOne(Communicator& group, const Plan& plan, Memory& memory, uint64_t seed) {
  if (const absl::Status made = memory.Make(group, plan.window); !made.ok()) return made.ToString();
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    std::memset(memory.in(i), 1 + group.rank(), kArea);
    std::memset(memory.out(i), 2 + group.rank(), kArea);
  }
  damage = {.after = group.rank() == plan.odd ? static_cast<int>(plan.damaged) : -1, .bit = plan.bit};
  std::vector<Work> works;
  absl::Status status;
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    works.push_back(Submit(group, plan.calls[i], memory.in(i), memory.out(i)));
    if (plan.at_once && status.ok()) status = works.back().Wait(kBound);
  }
  for (Work& work : works) {
    if (const absl::Status ended = work.Wait(kBound); status.ok()) status = ended;
  }
  if (status.ok()) status = ErrorOf(group);
  damage.after = -1;
  return Check(status, Verdict(group, plan), seed);
}

}  // namespace

std::string DamageResult(Communicator& world, uint64_t seed, int* copies) {
  std::mt19937_64 random(seed);
  int size = 0;
  const absl::StatusOr<std::unique_ptr<Communicator>> group = DrawGroup(random, world, &size);
  if (!group.ok()) return group.status().ToString();
  if (copies != nullptr) *copies = size;
  const Plan plan = DrawPlan(random, size);
  Memory memory;  // a window must live until all have met
  return Meet(world, *group == nullptr ? "" : DamageOne(**group, plan, memory, seed));
}

namespace {

// An input that is not finite.
struct Poison {
  size_t before = 0;  // calls that are right
  Call right, wrong;
  int odd = 0;  // group rank
  bool nan = true;
  uint64_t bits = 0;
  size_t element = 0;
};

Poison DrawPoison(std::mt19937_64& random, int size) {
  struct Type {
    DataType dtype;
    uint64_t nan;
    uint64_t infinity;  // 0: none
  };
  static constexpr Type kTypes[] = {{DataType::kFloat32, 0x7fc0'0000, 0xff80'0000},
                                    {DataType::kFloat64, 0xfff8'0000'0000'0001, 0x7ff0'0000'0000'0000},
                                    {DataType::kFloat16, 0x7e00, 0x7c00},
                                    {DataType::kBFloat16, 0xff81, 0xff80},
                                    {DataType::kFloat8E4M3, 0x7f, 0},
                                    {DataType::kFloat8E5M2, 0xfe, 0x7c}};
  Poison poison;
  poison.before = Draw(random, Memory::kCalls);
  const Type& type = kTypes[Draw(random, std::size(kTypes))];
  const DataType types[] = {type.dtype};
  poison.right = DrawCall(random, kAll, types, size);
  poison.wrong = Draw(random, 2) == 0 ? poison.right : DrawCall(random, kAll, types, size);
  const Call& wrong = poison.wrong;
  const bool rooted = wrong.kind == CollectiveKind::kBroadcast || wrong.kind == CollectiveKind::kScatter;
  const auto drawn = static_cast<int>(Draw(random, static_cast<uint64_t>(size)));
  poison.odd = rooted ? wrong.root : drawn;
  int64_t elements = wrong.count;
  if (wrong.kind == CollectiveKind::kAllGatherV) {  // of somebody who gives something
    poison.odd = static_cast<int>(std::max_element(wrong.counts.begin(), wrong.counts.end()) - wrong.counts.begin());
    elements = wrong.counts[static_cast<size_t>(poison.odd)];
  }
  poison.nan = type.infinity == 0 || Draw(random, 2) == 0;
  poison.bits = poison.nan ? type.nan : type.infinity;
  poison.element = static_cast<size_t>(Draw(random, static_cast<uint64_t>(elements)));
  return poison;
}

std::string PassOne(Communicator& group, const Poison& poison, uint64_t seed) {
  Memory memory;
  if (const absl::Status made = memory.Make(group, false); !made.ok()) return made.ToString();
  const Call& wrong = poison.wrong;
  const bool is_odd = group.rank() == poison.odd;
  absl::Status status;
  // A rank that is slow learns in one of these of what another has passed later.
  for (size_t i = 0; i < poison.before && status.ok(); ++i) {
    status = Submit(group, poison.right, memory.in(0), memory.out(0)).Wait(kBound);
  }
  if (is_odd && !status.ok()) return status.ToString();
  if (is_odd) {
    const bool in_out =
        wrong.kind == CollectiveKind::kBroadcast || (wrong.kind == CollectiveKind::kAllReduce && wrong.in_place);
    const size_t size = comm::SizeOf(wrong.dtype);
    std::memcpy((in_out ? memory.out(1) : memory.in(1)) + poison.element * size, &poison.bits, size);
  }
  if (status.ok()) status = Submit(group, wrong, memory.in(1), memory.out(1)).Wait(kBound);
  if (is_odd && status.ok()) return "seed " + std::to_string(seed) + ": the call was done";
  if (status.ok()) status = ErrorOf(group);
  return Check(
      status,
      {"rank " + std::to_string(group.members()[static_cast<size_t>(poison.odd)]) + "'s input of " +
           std::string(comm::Name(wrong.kind)) + "(",
       " at trials.cc:",
       std::string(poison.nan ? "holds NaN" : "holds infinity") + " at element " + std::to_string(poison.element) + " ",
       poison.nan ? "(1 NaN, 0 inf)" : "(0 NaN, 1 inf)"},
      seed);
}

}  // namespace

std::string PassNonFinite(Communicator& world, uint64_t seed, int* copies) {
  std::mt19937_64 random(seed);
  int size = 0;
  const absl::StatusOr<std::unique_ptr<Communicator>> group = DrawGroup(random, world, &size);
  if (!group.ok()) return group.status().ToString();
  if (copies != nullptr) *copies = size;
  const Poison poison = DrawPoison(random, size);
  return Meet(world, *group == nullptr ? "" : PassOne(**group, poison, seed));
}

}  // namespace cohort::testing
