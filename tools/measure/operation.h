// The operations that benchmarks measure, and the sizes and factors that go with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::measure {

enum class Operation : uint8_t {
  kBroadcast,
  kReduce,
  kAllReduce,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendRecv,  // every rank sends a block to the next one and receives one from the one before
  kBarrier,
};
inline constexpr int kOperations = 10;

std::string_view Name(Operation operation);  // "all_reduce", ...
// False where there is no operation of that name.
bool ParseOperation(std::string_view name, Operation* operation);
std::vector<Operation> AllOperations();
std::vector<Operation> Collectives();  // all but send_recv
std::string OperationNames();          // "broadcast, reduce, ..."

// False for barrier: it has no buffers, sizes or element types.
bool HasBlocks(Operation operation);
bool Reduces(Operation operation);
bool IsRooted(Operation operation);

// How many blocks the input and the output of a rank hold; 0: it has none. A block is what `bytes` of a benchmark
// counts: the whole vector of all-reduce, broadcast and reduce, one rank's part in the others. A broadcast reads the
// input at the root and writes the output elsewhere (the same buffer where it is in place).
struct Blocks {
  int in = 0;
  int out = 0;
};
Blocks BlocksOf(Operation operation, bool is_root, int ranks);

// The bytes that algorithm bandwidth counts (the larger of a rank's total input and output), and what to multiply it
// with for bus bandwidth, which is comparable between operations and numbers of ranks; both as nccl-tests define them.
double TotalBytes(Operation operation, int ranks, double block_bytes);
double BusFactor(Operation operation, int ranks);

}  // namespace cohort::measure
