#include "tests/comm/check/trials.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

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
};

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
  return call;
}

// Makes the call at a line of its own, so that the error's place tells it.
Work Submit(Communicator& group, const Call& call, std::byte* in, std::byte* out) {
  const int64_t n = call.count;
  const int64_t all = n * group.size();
  const DataType type = call.dtype;
  const std::byte* const from = call.in_place ? out : in;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return group.AllReduce(ConstBuffer(from, n, type), Buffer(out, n, type), ReduceOp::kMax);
    case CollectiveKind::kBroadcast:
      return group.Broadcast(Buffer(out, n, type), call.root);
    case CollectiveKind::kAllGather:
      return group.AllGather(ConstBuffer(in, n, type), Buffer(out, all, type));
    case CollectiveKind::kAllGatherV: {
      const int64_t own = call.counts[static_cast<size_t>(group.rank())];
      return group.AllGatherV(ConstBuffer(in, own, type), Buffer(out, kArea / comm::SizeOf(type), type),
                              {call.counts, {}});
    }
    case CollectiveKind::kReduce:
      return group.Reduce(ConstBuffer(in, n, type), Buffer(out, n, type), ReduceOp::kSum, call.root);
    case CollectiveKind::kGather:
      return group.Gather(ConstBuffer(in, n, type), Buffer(out, all, type), call.root);
    case CollectiveKind::kScatter:
      return group.Scatter(ConstBuffer(in, all, type), Buffer(out, n, type), call.root);
    case CollectiveKind::kReduceScatter:
      return group.ReduceScatter(ConstBuffer(in, all, type), Buffer(out, n, type), ReduceOp::kSum);
    case CollectiveKind::kAllToAll:
      return group.AllToAll(ConstBuffer(in, all, type), Buffer(out, all, type));
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

std::string DamageResult(Communicator& world, uint64_t seed) {
  static constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllReduce,
                                              CollectiveKind::kBroadcast, CollectiveKind::kAllGather,
                                              CollectiveKind::kAllGatherV};
  static constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16, DataType::kInt32,
                                        DataType::kUint8};
  std::mt19937_64 random(seed);
  const auto odd = static_cast<int>(Draw(random, static_cast<uint64_t>(world.size())));
  const bool window = Draw(random, 3) == 0;
  const size_t calls = 1 + Draw(random, Memory::kCalls);
  const size_t damaged = Draw(random, calls);
  const bool at_once = Draw(random, 2) == 0;  // each is waited for
  const uint64_t bit = random();
  std::vector<Call> program;
  for (size_t i = 0; i < calls; ++i) program.push_back(DrawCall(random, kKinds, kTypes, world.size()));

  absl::StatusOr<std::unique_ptr<Communicator>> group = world.Duplicate();
  if (!group.ok()) return group.status().ToString();
  Memory memory;
  if (const absl::Status made = memory.Make(**group, window); !made.ok()) return made.ToString();
  for (size_t i = 0; i < calls; ++i) {
    std::memset(memory.in(i), 1 + world.rank(), kArea);
    std::memset(memory.out(i), 2 + world.rank(), kArea);
  }
  damage = {.after = world.rank() == odd ? static_cast<int>(damaged) : -1, .bit = bit};
  std::vector<Work> works;
  absl::Status status;
  for (size_t i = 0; i < calls; ++i) {
    works.push_back(Submit(**group, program[i], memory.in(i), memory.out(i)));
    if (at_once && status.ok()) status = works.back().Wait(kBound);
  }
  for (Work& work : works) {
    if (const absl::Status ended = work.Wait(kBound); status.ok()) status = ended;
  }
  if (status.ok()) status = ErrorOf(**group);
  damage.after = -1;

  std::vector<std::string> words = {std::string(comm::Name(program[damaged].kind)) + "(", " at trials.cc:"};
  if (world.size() == 2) {
    words.emplace_back("results differ: rank 0 and rank 1 have different results of ");
  } else {
    words.push_back("results differ: rank " + std::to_string(world.members()[static_cast<size_t>(odd)]) +
                    " has another result of ");
  }
  if (program[damaged].kind != CollectiveKind::kAllGatherV) {
    words.push_back(", " + std::to_string(program[damaged].count));
  }
  // A window makes calls of its own.
  if (!window) words.push_back(", operation " + std::to_string(damaged + 1) + ")");
  std::string wrong = Check(status, words, seed);
  // The window must live until nobody stores into it.
  if (const absl::Status met = world.Barrier().Wait(kBound); wrong.empty() && !met.ok()) return met.ToString();
  return wrong;
}

std::string PassNonFinite(Communicator& world, uint64_t seed) {
  static constexpr CollectiveKind kKinds[] = {
      CollectiveKind::kAllReduce,  CollectiveKind::kBroadcast,     CollectiveKind::kAllGather,
      CollectiveKind::kAllGatherV, CollectiveKind::kReduce,        CollectiveKind::kGather,
      CollectiveKind::kScatter,    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll};
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
  std::mt19937_64 random(seed);
  const size_t before = Draw(random, Memory::kCalls);  // calls that are right
  const Type& type = kTypes[Draw(random, std::size(kTypes))];
  const DataType types[] = {type.dtype};
  const Call right = DrawCall(random, kKinds, types, world.size());
  const Call wrong = Draw(random, 2) == 0 ? right : DrawCall(random, kKinds, types, world.size());
  const bool rooted = wrong.kind == CollectiveKind::kBroadcast || wrong.kind == CollectiveKind::kScatter;
  const auto drawn = static_cast<int>(Draw(random, static_cast<uint64_t>(world.size())));
  const int odd = rooted ? wrong.root : drawn;
  const bool nan = type.infinity == 0 || Draw(random, 2) == 0;
  int64_t elements = wrong.count;
  if (wrong.kind == CollectiveKind::kAllGatherV) elements = wrong.counts[static_cast<size_t>(odd)];
  if (elements == 0) return "";
  const auto element = static_cast<size_t>(Draw(random, static_cast<uint64_t>(elements)));

  absl::StatusOr<std::unique_ptr<Communicator>> group = world.Duplicate();
  if (!group.ok()) return group.status().ToString();
  Memory memory;
  if (const absl::Status made = memory.Make(**group, false); !made.ok()) return made.ToString();
  absl::Status status;
  // A rank that is slow learns in one of these of what another has passed later.
  for (size_t i = 0; i < before && status.ok(); ++i) {
    status = Submit(**group, right, memory.in(0), memory.out(0)).Wait(kBound);
  }
  if (world.rank() == odd && !status.ok()) return status.ToString();
  if (world.rank() == odd) {
    const bool in_out =
        wrong.kind == CollectiveKind::kBroadcast || (wrong.kind == CollectiveKind::kAllReduce && wrong.in_place);
    const size_t size = comm::SizeOf(type.dtype);
    std::memcpy((in_out ? memory.out(1) : memory.in(1)) + element * size, nan ? &type.nan : &type.infinity, size);
  }
  if (status.ok()) status = Submit(**group, wrong, memory.in(1), memory.out(1)).Wait(kBound);
  if (world.rank() == odd && status.ok()) return "seed " + std::to_string(seed) + ": the call was done";
  if (status.ok()) status = ErrorOf(**group);
  const std::vector<std::string> words = {
      "rank " + std::to_string(world.members()[static_cast<size_t>(odd)]) + "'s input of " +
          std::string(comm::Name(wrong.kind)) + "(",
      " at trials.cc:",
      std::string(nan ? "holds NaN" : "holds infinity") + " at element " + std::to_string(element) + " ",
      nan ? "(1 NaN, 0 inf)" : "(0 NaN, 1 inf)"};
  std::string text = Check(status, words, seed);
  if (const absl::Status met = world.Barrier().Wait(kBound); text.empty() && !met.ok()) return met.ToString();
  return text;
}

}  // namespace cohort::testing
