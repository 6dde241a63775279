#include "tests/comm/conformance/collective_case.h"

#include <algorithm>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/reduce/reduce.h"
#include "tests/comm/reduce/scalar_reference.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CollectiveKind;
using comm::ConstBuffer;
using comm::DataType;
using comm::ReduceOp;

uint64_t Scramble(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  return value ^ (value >> 27);
}

// Element `index` of rank `rank`'s whole input. Products stay powers of two; sums of 17 ranks fit into every type.
int ValueAt(const CollectiveCase& the_case, int rank, int64_t index) {
  const uint64_t random =
      Scramble(the_case.salt * 1000003 + static_cast<uint64_t>(rank) * 65537 + static_cast<uint64_t>(index));
  if (the_case.op == ReduceOp::kProduct) return random % 3 == 0 ? 2 : (random % 3 == 1 ? -1 : 1);
  return static_cast<int>(random % 9) - 3;
}

// Returns the factor of a pre-multiplied sum; 1 for all else.
int FactorOf(const CollectiveCase& the_case, int rank) {
  return the_case.op == ReduceOp::kPreMulSum ? 1 + rank % 3 : 1;
}

// The user function of the cases: the larger one.
void Larger(void* out, const void* a, const void* b, int64_t count, DataType dtype, void*) {
  comm::FindReduceKernel(dtype, ReduceOp::kMax)(out, a, b, static_cast<size_t>(count));
}
constexpr comm::UserReduceOp kLarger = {.function = Larger, .context = nullptr, .name = "larger"};

template <typename T>
void PutAt(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void PutFloat(DataType dtype, std::byte* at, double value) {
  switch (dtype) {
    case DataType::kFloat16:
      return PutAt(at, comm::ReferenceFloat16::FromDouble(value).bits);
    case DataType::kBFloat16:
      return PutAt(at, comm::ReferenceBFloat16::FromDouble(value).bits);
    case DataType::kFloat8E4M3:
      return PutAt(at, comm::ReferenceFloat8E4M3::FromDouble(value).bits);
    case DataType::kFloat8E5M2:
      return PutAt(at, comm::ReferenceFloat8E5M2::FromDouble(value).bits);
    case DataType::kFloat32:
      return PutAt(at, static_cast<float>(value));
    default:
      return PutAt(at, value);
  }
}

void PutInput(DataType dtype, std::byte* at, int value) {
  if (comm::IsFloat(dtype)) return PutFloat(dtype, at, value);
  switch (comm::SizeOf(dtype)) {
    case 1:
      return PutAt(at, static_cast<int8_t>(value));
    case 2:
      return PutAt(at, static_cast<int16_t>(value));
    case 4:
      return PutAt(at, static_cast<int32_t>(value));
    default:
      return PutAt(at, static_cast<int64_t>(value));
  }
}

// Wraps around as the type does, but for means.
template <typename T>
T CombineIntegers(ReduceOp op, const std::vector<int>& values) {
  if (op == ReduceOp::kAvg) {
    __extension__ using Wide = __int128;
    Wide sum = 0;
    for (const int value : values) sum += static_cast<T>(value);
    return static_cast<T>(sum / static_cast<Wide>(values.size()));
  }
  T result = static_cast<T>(values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    switch (op) {
      case ReduceOp::kProduct:
        result = static_cast<T>(result * value);
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
      case ReduceOp::kUser:
        result = std::max(result, value);
        break;
      case ReduceOp::kBand:
        result = static_cast<T>(result & value);
        break;
      case ReduceOp::kBor:
        result = static_cast<T>(result | value);
        break;
      case ReduceOp::kBxor:
        result = static_cast<T>(result ^ value);
        break;
      default:
        result = static_cast<T>(result + value);
    }
  }
  return result;
}

void PutCombined(const CollectiveCase& the_case, std::byte* at, const std::vector<int>& values) {
  switch (the_case.dtype) {
    case DataType::kInt8:
      return PutAt(at, CombineIntegers<int8_t>(the_case.op, values));
    case DataType::kUint8:
      return PutAt(at, CombineIntegers<uint8_t>(the_case.op, values));
    case DataType::kInt16:
      return PutAt(at, CombineIntegers<int16_t>(the_case.op, values));
    case DataType::kUint16:
      return PutAt(at, CombineIntegers<uint16_t>(the_case.op, values));
    case DataType::kInt32:
      return PutAt(at, CombineIntegers<int32_t>(the_case.op, values));
    case DataType::kUint32:
      return PutAt(at, CombineIntegers<uint32_t>(the_case.op, values));
    case DataType::kInt64:
      return PutAt(at, CombineIntegers<int64_t>(the_case.op, values));
    case DataType::kUint64:
      return PutAt(at, CombineIntegers<uint64_t>(the_case.op, values));
    default:
      break;
  }
  const auto exact = static_cast<double>(
      CombineIntegers<int64_t>(the_case.op == ReduceOp::kAvg ? ReduceOp::kSum : the_case.op, values));
  const double divisor = the_case.op == ReduceOp::kAvg ? static_cast<double>(values.size()) : 1;
  const bool narrow = comm::IsSmallFloat(the_case.dtype);  // divided in float32
  PutFloat(the_case.dtype, at,
           narrow ? static_cast<double>(static_cast<float>(exact) / static_cast<float>(divisor)) : exact / divisor);
}

}  // namespace

std::vector<std::byte> InputOf(const CollectiveCase& the_case, int rank, int64_t first, int64_t count) {
  const size_t element = comm::SizeOf(the_case.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * element);
  for (int64_t i = 0; i < count; ++i) {
    PutInput(the_case.dtype, bytes.data() + static_cast<size_t>(i) * element, ValueAt(the_case, rank, first + i));
  }
  return bytes;
}

std::vector<std::byte> CombinedOf(const CollectiveCase& the_case, int size, int64_t first, int64_t count) {
  const size_t element = comm::SizeOf(the_case.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * element);
  std::vector<int> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < size; ++rank) {
      values[static_cast<size_t>(rank)] = ValueAt(the_case, rank, first + i) * FactorOf(the_case, rank);
    }
    PutCombined(the_case, bytes.data() + static_cast<size_t>(i) * element, values);
  }
  return bytes;
}

namespace {

void Append(std::vector<std::byte>& to, const std::vector<std::byte>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// Returns what the call must leave in `rank`'s output: the serial reference.
std::vector<std::byte> Reference(const CollectiveCase& the_case, int rank, int size) {
  const int64_t n = the_case.count;
  std::vector<std::byte> result;
  switch (the_case.kind) {
    case CollectiveKind::kBroadcast:
      return InputOf(the_case, the_case.root, 0, n);
    case CollectiveKind::kReduce:
    case CollectiveKind::kAllReduce:
      return CombinedOf(the_case, size, 0, n);
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      for (int from = 0; from < size; ++from) Append(result, InputOf(the_case, from, 0, n));
      return result;
    case CollectiveKind::kScatter:
      return InputOf(the_case, the_case.root, rank * n, n);
    case CollectiveKind::kReduceScatter:
      return CombinedOf(the_case, size, rank * n, n);
    case CollectiveKind::kAllToAll:
      for (int from = 0; from < size; ++from) Append(result, InputOf(the_case, from, rank * n, n));
      return result;
    case CollectiveKind::kSend:
      return InputOf(the_case, the_case.root, 0, n);
    default:
      return result;
  }
}

}  // namespace

comm::CallOptions OptionsOf(const CollectiveCase& the_case, int rank) {
  comm::CallOptions options;
  options.algorithm = the_case.algorithm;
  options.determinism = the_case.determinism;
  options.factor = FactorOf(the_case, rank);
  if (the_case.op == ReduceOp::kUser) options.user_op = &kLarger;  // calls without one can be remembered
  options.timeout = std::chrono::seconds(60);
  return options;
}

std::string CollectiveCase::ToString() const {
  return std::string(Name(kind)) + "(" + std::string(Name(op)) + ", " + std::string(Name(dtype)) + ", count " +
         std::to_string(count) + ", root " + std::to_string(root) + ", peer " + std::to_string(peer) +
         (in_place ? ", in place" : "") + ", " + std::string(Name(determinism)) + ", algorithm \"" + algorithm +
         "\", salt " + std::to_string(salt) + ")";
}

PendingCase::Memory::Memory(size_t bytes, uint8_t fill, std::span<std::byte>* room) {
  const size_t all = bytes + 2 * kGuard;
  const size_t taken = (all + kGuard - 1) / kGuard * kGuard;
  if (room != nullptr && taken <= room->size()) {
    bytes_ = room->first(all);
    *room = room->subspan(taken);
  } else {
    own_.resize(all);
    bytes_ = own_;
  }
  std::fill(bytes_.begin(), bytes_.end(), std::byte{0xa5});
  std::fill(bytes_.begin() + kGuard, bytes_.end() - kGuard, std::byte{fill});
}

PendingCase::Memory::Memory(size_t bytes, uint8_t fill) : Memory(bytes, fill, nullptr) {}

bool PendingCase::Memory::guards_intact() const {
  const auto intact = [](std::byte value) { return value == std::byte{0xa5}; };
  return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, intact) &&
         std::all_of(bytes_.end() - kGuard, bytes_.end(), intact);
}

PendingCase::PendingCase(comm::Communicator& communicator, const CollectiveCase& the_case, comm::Batch* batch,
                         std::span<std::byte> room)
    : case_(the_case), rank_(communicator.rank()), size_(communicator.size()), batch_(batch), room_(room) {
  Start(communicator);
}

namespace {

runtime::Work Taken(runtime::Work work) { return work; }
runtime::Work Taken(comm::Batch&) { return runtime::Work(); }  // its Work is the batch's
runtime::Work Barrier(comm::Communicator& communicator, const comm::CallOptions& options) {
  return communicator.Barrier(options);
}
runtime::Work Barrier(comm::Batch&, const comm::CallOptions&) { return runtime::Work(); }

// Makes the call, on a communicator or as one of a batch.
template <typename Target>
runtime::Work Issue(Target& on, const CollectiveCase& c, ConstBuffer source, Buffer target,
                    const comm::CallOptions& options, int rank) {
  switch (c.kind) {
    case CollectiveKind::kBroadcast:
      return Taken(on.Broadcast(target, c.root, options));
    case CollectiveKind::kReduce:
      return Taken(on.Reduce(source, target, c.op, c.root, options));
    case CollectiveKind::kAllReduce:
      return Taken(on.AllReduce(source, target, c.op, options));
    case CollectiveKind::kGather:
      return Taken(on.Gather(source, target, c.root, options));
    case CollectiveKind::kScatter:
      return Taken(on.Scatter(source, target, c.root, options));
    case CollectiveKind::kAllGather:
      return Taken(on.AllGather(source, target, options));
    case CollectiveKind::kReduceScatter:
      return Taken(on.ReduceScatter(source, target, c.op, options));
    case CollectiveKind::kAllToAll:
      return Taken(on.AllToAll(source, target, options));
    case CollectiveKind::kBarrier:
      return Barrier(on, options);
    default:
      if (rank == c.root) return Taken(on.Send(source, c.peer, options));
      if (rank == c.peer) return Taken(on.Recv(target, c.root, options));
      return runtime::Work();
  }
}

}  // namespace

int PendingCase::Start(comm::Communicator& communicator) {
  if (comm::HasUnequalBlocks(case_.kind)) return StartUnequal(communicator);
  const CollectiveCase& c = case_;
  const bool is_root = rank_ == c.root;
  comm::BufferBlocks blocks = comm::BlocksOf(c.kind, is_root, size_);
  if (c.kind == CollectiveKind::kSend) blocks = {is_root ? 1 : 0, rank_ == c.peer ? 1 : 0};
  const size_t block = static_cast<size_t>(c.count) * comm::SizeOf(c.dtype);
  if (blocks.in > 0) input_ = InputOf(c, rank_, 0, c.count * blocks.in);
  if (blocks.out > 0) expected_ = Reference(c, rank_, size_);

  const bool one_buffer = c.kind == CollectiveKind::kBroadcast || (c.in_place && blocks.in > 0 && blocks.out > 0);
  const size_t bytes = block * static_cast<size_t>(one_buffer ? std::max(blocks.in, blocks.out) : blocks.out);
  if (blocks.out > 0 || one_buffer) out_ = std::make_unique<Memory>(bytes, 0x5a, &room_);
  if (blocks.in > 0 && !one_buffer) in_ = std::make_unique<Memory>(input_.size(), 0, &room_);
  // In place, the smaller buffer is this rank's block of the larger one.
  const size_t own = blocks.in == blocks.out ? 0 : block * static_cast<size_t>(rank_);
  std::byte* in = in_ != nullptr ? in_->data() : nullptr;
  std::byte* out = out_ != nullptr ? out_->data() : nullptr;
  if (one_buffer) {
    in = out + (blocks.in < blocks.out ? own : 0);
    out = out + (blocks.in > blocks.out ? own : 0);
  }
  if (!input_.empty() && (c.kind != CollectiveKind::kBroadcast || is_root)) {
    std::memcpy(in, input_.data(), input_.size());
  }
  const ConstBuffer source(in, c.count * blocks.in, c.dtype);
  const Buffer target(out, c.count * blocks.out, c.dtype);
  const comm::CallOptions options = OptionsOf(c, rank_);
  if (batch_ != nullptr && c.kind != CollectiveKind::kBarrier) {
    work_ = Issue(*batch_, c, source, target, options, rank_);
  } else {
    work_ = Issue(communicator, c, source, target, options, rank_);
  }
  return 0;
}

std::string PendingCase::Compare(const std::vector<std::byte>& expected, const std::byte* actual,
                                 const char* what) const {
  if (expected.empty() || std::memcmp(expected.data(), actual, expected.size()) == 0) return "";
  size_t at = 0;
  while (expected[at] == actual[at]) ++at;
  const size_t element = comm::SizeOf(case_.dtype);
  return case_.ToString() + ": rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + what +
         " is wrong at element " + std::to_string(at / element);
}

std::string PendingCase::Finish() {
  const absl::Status status = work_.Wait();
  if (!status.ok()) {
    return case_.ToString() + ": rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " +
           std::string(status.message());
  }
  std::byte* out = out_ != nullptr ? out_->data() : nullptr;
  const size_t own = static_cast<size_t>(rank_) * expected_.size();
  const bool in_larger_input = out_ != nullptr && out_->size() > expected_.size();
  if (std::string wrong = Compare(expected_, in_larger_input ? out + own : out, "the result"); !wrong.empty()) {
    return wrong;
  }
  if (in_ != nullptr) {
    if (std::string wrong = Compare(input_, in_->data(), "the input (written to)"); !wrong.empty()) return wrong;
  }
  if ((in_ != nullptr && !in_->guards_intact()) || (out_ != nullptr && !out_->guards_intact())) {
    return case_.ToString() + ": rank " + std::to_string(rank_) + ": memory around a buffer was written to";
  }
  return "";
}

std::string RunCase(comm::Communicator& communicator, const CollectiveCase& the_case) {
  return PendingCase(communicator, the_case).Finish();
}

std::vector<CollectiveCase> ConformanceCases(int size, uint64_t salt, int ranks_per_node) {
  std::vector<int> nodes;
  for (int rank = 0; rank < size; ++rank) nodes.push_back(rank / ranks_per_node);
  const comm::NodeShape shape = comm::Placement(nodes).shape();
  std::vector<CollectiveCase> cases;
  uint64_t turn = salt;
  const auto add = [&](CollectiveCase the_case) {
    the_case.salt = ++turn;
    if (comm::IsBitwise(the_case.op) && comm::IsFloat(the_case.dtype)) the_case.dtype = DataType::kInt32;
    the_case.root = static_cast<int>(turn % static_cast<uint64_t>(size));
    cases.push_back(the_case);
  };
  const auto type_of = [](uint64_t n) { return static_cast<DataType>(1 + n % (comm::kDataTypes - 1)); };
  const auto op_of = [](uint64_t n) { return static_cast<ReduceOp>(1 + n % (comm::kReduceOps - 1)); };
  for (int k = 1; k < comm::kCollectiveKinds; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    if (comm::IsPointToPoint(kind)) continue;
    std::vector<std::string> algorithms = {""};
    for (const comm::AlgorithmInfo& info : comm::AllAlgorithms()) {
      if (size == 1 || info.kind != kind || !comm::CheckRequirements(info, size, shape).ok()) continue;
      if (info.composition == nullptr) {
        algorithms.emplace_back(info.name);
        continue;
      }
      for (const int64_t count : {0, 1, 1003}) {
        const bool in_place = turn % 2 == 0;
        add({kind, type_of(turn), op_of(turn / 12), count, 0, 0, in_place, std::string(info.name), 0});
      }
    }
    for (const std::string& algorithm : algorithms) {
      for (const int64_t count : {0, 1, size - 1, size, size + 1, 61, 1003, 4096}) {
        for (const bool in_place : {false, true}) {
          add({kind, type_of(turn), op_of(turn / 12), count, 0, 0, in_place, algorithm, 0});
        }
      }
    }
    if (!comm::Reduces(kind)) continue;
    for (int t = 0; t < comm::kDataTypes - 1; ++t) {
      for (int o = 0; o < comm::kReduceOps - 1; ++o) {
        add({kind, type_of(static_cast<uint64_t>(t)), op_of(static_cast<uint64_t>(o)), 37, 0, 0, o % 2 == 1, "", 0});
      }
    }
  }
  for (int from = 0; from < size && size > 1; ++from) {
    CollectiveCase message{
        CollectiveKind::kSend, type_of(turn), ReduceOp::kSum, 100 * from, from, 0, false, "", ++turn};
    message.peer = (from + 1) % size;
    cases.push_back(message);
  }
  return cases;
}

}  // namespace cohort::testing
