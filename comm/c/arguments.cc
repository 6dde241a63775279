#include "cohort/comm/c/arguments.h"

#include <algorithm>

#include "cohort/comm/c/call_site.h"
#include "cohort/comm/group/mix_hash.h"

namespace cohort::comm::c {
namespace {

constexpr int64_t kMostBlockBytes = int64_t{1} << 24;
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max();

static_assert(COHORT_INT8 == static_cast<int>(DataType::kInt8) &&
              COHORT_UINT64 == static_cast<int>(DataType::kUint64) &&
              COHORT_FLOAT16 == static_cast<int>(DataType::kFloat16) &&
              COHORT_FLOAT64 == static_cast<int>(DataType::kFloat64) &&
              COHORT_FLOAT8_E5M2 == static_cast<int>(DataType::kFloat8E5M2) && kDataTypes == COHORT_FLOAT8_E5M2 + 1);
static_assert(static_cast<int>(ReduceOp::kSum) == 1 && static_cast<int>(ReduceOp::kPreMulSum) == 9,
              "COHORT_SUM to COHORT_PREMUL_SUM are these numbers");
static_assert(COHORT_FAST == static_cast<int>(Determinism::kFast) &&
              COHORT_ORDER_INVARIANT == static_cast<int>(Determinism::kOrderInvariant) && kDeterminismLevels == 4);
static_assert(COHORT_HOST == static_cast<int>(MemoryKind::kHost) && COHORT_CUDA == static_cast<int>(MemoryKind::kCuda));

bool IsPowerOfNumber(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8; }

// 20 blocks of 12 bytes and 10 of 24 are the same bytes to the layers below, which compare tags.
uint64_t SignedTag(const BlockNote& note, uint64_t tag) {
  const auto bytes = static_cast<uint64_t>(note.block_bytes);
  return bytes == 0 || tag == 0 ? tag + bytes : MixHash(tag, bytes);
}

cohort_status ReadOp(const CallText& text, PreparedOptions* prepared) {
  const uint64_t number = NumberOf(text.op);
  if (number > 0 && number <= static_cast<uint64_t>(ReduceOp::kPreMulSum)) {
    prepared->op = static_cast<ReduceOp>(number);
    if (prepared->elements.block_bytes == 0) return COHORT_OK;
    return Invalid(text.function, "the op " + std::string(Name(prepared->op)) +
                                      " is not defined for blocks of bytes; cohort_op_create makes one that is");
  }
  if (const cohort_status found = Peek(text.function, text.op, &OperationObject::operation, &prepared->user);
      found != COHORT_OK) {
    return found;
  }
  prepared->op = ReduceOp::kUser;
  const int64_t bytes = prepared->elements.block_bytes;
  if (bytes == 0) {
    prepared->options.user_op = prepared->user->ForNumbers();
  } else if (IsPowerOfNumber(bytes)) {
    prepared->options.user_op = prepared->user->ForBlocks(bytes);
  } else {
    prepared->by_blocks = true;
  }
  return COHORT_OK;
}

}  // namespace

cohort_status ReadElements(const char* function, cohort_type type, Elements* elements) {
  if (type > 0 && type < kDataTypes) {
    *elements = {static_cast<DataType>(type), 1, 0};
    return COHORT_OK;
  }
  const int64_t bytes = int64_t{type} - COHORT_BLOCK_BASE;
  if (bytes < 1 || bytes > kMostBlockBytes) {
    return Invalid(
        function, "the type is " + std::to_string(type) + ", which is no cohort_type; blocks have 1 to 16777216 bytes");
  }
  switch (bytes) {
    case 1:
      *elements = {DataType::kUint8, 1, bytes};
      break;
    case 2:
      *elements = {DataType::kUint16, 1, bytes};
      break;
    case 4:
      *elements = {DataType::kUint32, 1, bytes};
      break;
    case 8:
      *elements = {DataType::kUint64, 1, bytes};
      break;
    default:
      *elements = {DataType::kUint8, bytes, bytes};
  }
  return COHORT_OK;
}

cohort_status ReadDeterminism(const char* function, int32_t number, Determinism* level) {
  if (number < 0 || number >= kDeterminismLevels) {
    return Invalid(function, "options->determinism is " + std::to_string(number) +
                                 "; it is 0 or one of COHORT_FAST, COHORT_REPRODUCIBLE, COHORT_ORDER_INVARIANT");
  }
  *level = static_cast<Determinism>(number);
  return COHORT_OK;
}

int64_t Scaled(int64_t count, int64_t scale) {
  int64_t scaled;
  if (!__builtin_mul_overflow(count, scale, &scaled)) return scaled;
  return count < 0 ? -kMostElements : kMostElements;
}

cohort_status Prepare(const CallText& text, PreparedOptions* prepared) {
  cohort_call_options given = COHORT_CALL_OPTIONS_INIT;
  given.file = nullptr;
  if (const cohort_status read = ReadSized(text.function, "options", text.options, &given); read != COHORT_OK)
    return read;
  CallOptions& options = prepared->options;
  if (const cohort_status read = ReadDeterminism(text.function, given.determinism, &options.determinism);
      read != COHORT_OK) {
    return read;
  }
  if (given.memory != COHORT_HOST && given.memory != COHORT_CUDA) {
    return Invalid(text.function,
                   "options->memory is " + std::to_string(given.memory) + "; it is COHORT_HOST or COHORT_CUDA");
  }
  if (given.timeout_ns != 0) options.timeout = TimeoutOf(given.timeout_ns);
  if (given.algorithm != nullptr) options.algorithm = given.algorithm;
  options.factor = given.factor;
  options.stream = given.stream;
  prepared->tag = given.tag;
  prepared->memory = static_cast<MemoryKind>(given.memory);
  prepared->device = given.device;
  prepared->site = CallSite(given.file, given.line);
  if (const cohort_status read = ReadElements(text.function, text.type, &prepared->elements); read != COHORT_OK)
    return read;
  options.tag = SignedTag(prepared->note(), given.tag);
  return text.reduces ? ReadOp(text, prepared) : COHORT_OK;
}

cohort_status Blocks::Read(const char* function, const char* name, const int64_t* counts, const int64_t* displacements,
                           int size, int64_t scale, Blocks* blocks) {
  if (counts == nullptr) {
    return Invalid(function,
                   std::string(name) + " is null; it has a number for each of the " + std::to_string(size) + " ranks");
  }
  blocks->counts_.assign(counts, counts + size);
  for (int64_t& count : blocks->counts_) count = Scaled(count, scale);
  if (displacements != nullptr) {
    blocks->places_.assign(displacements, displacements + size);
    for (int64_t& place : blocks->places_) place = Scaled(place, scale);
  }
  // Negative numbers are refused below, by the checks of the call.
  int64_t end = 0;
  for (size_t i = 0; i < blocks->counts_.size(); ++i) {
    const int64_t place = displacements != nullptr ? blocks->places_[i] : end;
    if (__builtin_add_overflow(place, blocks->counts_[i], &end)) end = kMostElements;
    if (blocks->counts_[i] != 0) blocks->extent_ = std::max(blocks->extent_, end);
  }
  return COHORT_OK;
}

std::chrono::nanoseconds TimeoutOf(int64_t timeout_ns) { return std::chrono::nanoseconds(timeout_ns); }

}  // namespace cohort::comm::c

int64_t cohort_type_bytes(cohort_type type) {
  using cohort::comm::DataType;
  const int64_t block = int64_t{type} - COHORT_BLOCK_BASE;
  if (block >= 1 && block <= cohort::comm::c::kMostBlockBytes) return block;
  return type > 0 && type < cohort::comm::kDataTypes ? static_cast<int64_t>(SizeOf(static_cast<DataType>(type))) : 0;
}
