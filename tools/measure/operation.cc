#include "tools/measure/operation.h"

namespace cohort::measure {
namespace {

constexpr std::string_view kNames[kOperations] = {"broadcast",  "reduce",         "all_reduce", "gather",    "scatter",
                                                  "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier"};

}  // namespace

std::string_view Name(Operation operation) { return kNames[static_cast<int>(operation)]; }

bool ParseOperation(std::string_view name, Operation* operation) {
  for (int i = 0; i < kOperations; ++i) {
    if (kNames[i] != name) continue;
    *operation = static_cast<Operation>(i);
    return true;
  }
  return false;
}

std::vector<Operation> AllOperations() {
  std::vector<Operation> all;
  for (int i = 0; i < kOperations; ++i) all.push_back(static_cast<Operation>(i));
  return all;
}

std::vector<Operation> Collectives() {
  std::vector<Operation> some = AllOperations();
  std::erase(some, Operation::kSendRecv);
  return some;
}

std::string OperationNames() {
  std::string names;
  for (const std::string_view name : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

bool HasBlocks(Operation operation) { return operation != Operation::kBarrier; }

bool Reduces(Operation operation) {
  return operation == Operation::kReduce || operation == Operation::kAllReduce ||
         operation == Operation::kReduceScatter;
}

bool IsRooted(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce || operation == Operation::kGather ||
         operation == Operation::kScatter;
}

Blocks BlocksOf(Operation operation, bool is_root, int ranks) {
  switch (operation) {
    case Operation::kBroadcast:
      return {is_root ? 1 : 0, is_root ? 0 : 1};
    case Operation::kReduce:
      return {1, is_root ? 1 : 0};
    case Operation::kAllReduce:
    case Operation::kSendRecv:
      return {1, 1};
    case Operation::kGather:
      return {1, is_root ? ranks : 0};
    case Operation::kScatter:
      return {is_root ? ranks : 0, 1};
    case Operation::kAllGather:
      return {1, ranks};
    case Operation::kReduceScatter:
      return {ranks, 1};
    case Operation::kAllToAll:
      return {ranks, ranks};
    case Operation::kBarrier:
      break;
  }
  return {};
}

double TotalBytes(Operation operation, int ranks, double block_bytes) {
  switch (operation) {
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kAllReduce:
    case Operation::kSendRecv:
      return block_bytes;
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
      return block_bytes * ranks;
    case Operation::kBarrier:
      break;
  }
  return 0;
}

double BusFactor(Operation operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kSendRecv:
      return 1;
    case Operation::kAllReduce:
      return 2 * (n - 1) / n;
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
      return (n - 1) / n;
    case Operation::kBarrier:
      break;
  }
  return 0;
}

}  // namespace cohort::measure
