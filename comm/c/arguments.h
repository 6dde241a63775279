// Arguments of the C interface as the layers below take them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/errors.h"
#include "cohort/comm/c/objects.h"
#include "cohort/comm/request.h"
#include "cohort/comm/types.h"

namespace cohort::comm::c {

// Elements of a cohort_type. Blocks of 1, 2, 4 and 8 bytes are moved as integers, other blocks as `scale` bytes.
struct Elements {
  DataType dtype = DataType::kUint8;
  int64_t scale = 1;
  int64_t block_bytes = 0;  // 0: a built-in type
};

// `function` is the name in messages, here and below.
cohort_status ReadElements(const char* function, cohort_type type, Elements* elements);

// A number of an options' member `determinism`.
cohort_status ReadDeterminism(const char* function, int32_t number, Determinism* level);

// count * scale; at its limit where it would overflow: no call accepts that many elements.
int64_t Scaled(int64_t count, int64_t scale);

// The size of a struct in version 1.0 of the interface: no caller has a smaller one.
template <typename Struct>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<cohort_store> = 40;
template <>
inline constexpr size_t kFirstSize<cohort_init_options> = 32;
template <>
inline constexpr size_t kFirstSize<cohort_runtime_info> = 48;
template <>
inline constexpr size_t kFirstSize<cohort_comm_options> = 32;
template <>
inline constexpr size_t kFirstSize<cohort_call_options> = 72;

// Copies a struct that begins with its size over `copy`, which has the defaults. Members that the caller's version
// lacks keep their defaults. A null `given` changes nothing.
template <typename Struct>
cohort_status ReadSized(const char* function, const char* name, const Struct* given, Struct* copy) {
  constexpr size_t kMostBytes = 4096;
  if (given == nullptr) return COHORT_OK;
  const size_t size = given->size;
  if (size < kFirstSize<Struct> || size > kMostBytes) {
    return Invalid(function, std::string(name) + "->size is " + std::to_string(size) +
                                 "; it must be sizeof of the struct, " + std::to_string(sizeof(Struct)) +
                                 " here: fill it from its INIT macro");
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return Fail(COHORT_UNIMPLEMENTED, std::string("cohort_") + function + ": " + name +
                                            " sets a member of a later version than this library's");
    }
  }
  std::memcpy(copy, given, std::min(size, sizeof(Struct)));
  return COHORT_OK;
}

// The lists of a variable-count call, in the elements of the layers below.
class Blocks {
 public:
  // `size` numbers in each list. Null counts are an error; null displacements mean one block after another.
  static cohort_status Read(const char* function, const char* name, const int64_t* counts, const int64_t* displacements,
                            int size, int64_t scale, Blocks* blocks);
  BlockLayout layout() const { return {counts_, places_}; }
  // Past the last element of the blocks.
  int64_t extent() const { return extent_; }
  int64_t count(int rank) const { return counts_[static_cast<size_t>(rank)]; }

 private:
  std::vector<int64_t> counts_;
  std::vector<int64_t> places_;
  int64_t extent_ = 0;
};

// The arguments of one call on a communicator besides its buffers.
struct CallText {
  const char* function = "";
  const cohort_call_options* options = nullptr;
  cohort_type type = COHORT_UINT8;
  bool reduces = false;
  cohort_op op = nullptr;  // of calls that reduce
};

// The same, read and checked.
struct PreparedOptions {
  Elements elements;
  ReduceOp op = ReduceOp::kSum;
  CallOptions options;  // their tag stands for the size of blocks too, where they are moved as bytes
  uint64_t tag = 0;     // the caller's
  std::source_location site;
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;
  std::shared_ptr<const UserOperation> user;  // null: a built-in op
  // The layers below would cut blocks into pieces: block_reduction.h combines them.
  bool by_blocks = false;

  BlockNote note() const {
    return elements.scale > 1 ? BlockNote{.block_bytes = elements.block_bytes, .tag = tag} : BlockNote{};
  }
  ConstBuffer In(const void* data, int64_t count) const {
    return {data, Scaled(count, elements.scale), elements.dtype, memory, device};
  }
  Buffer Out(void* data, int64_t count) const {
    return {data, Scaled(count, elements.scale), elements.dtype, memory, device};
  }
  // A buffer that holds these blocks.
  ConstBuffer Span(const void* data, const Blocks& blocks) const {
    return {data, blocks.extent(), elements.dtype, memory, device};
  }
  Buffer Span(void* data, const Blocks& blocks) const {
    return {data, blocks.extent(), elements.dtype, memory, device};
  }
};
cohort_status Prepare(const CallText& text, PreparedOptions* prepared);

// A timeout of a C caller.
std::chrono::nanoseconds TimeoutOf(int64_t timeout_ns);

}  // namespace cohort::comm::c
