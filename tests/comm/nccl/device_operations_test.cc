// Every operation on a real device beside the same one on host memory: equal bytes, for each type. The values are whole
// numbers that no type rounds.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/comm/communicator.h"
#include "tests/comm/nccl/gpu_ranks.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;

template <typename T>
void Put(std::vector<char>& to, size_t i, T value) {
  std::memcpy(&to[i * sizeof value], &value, sizeof value);
}

void PutNumber(std::vector<char>& to, DataType dtype, size_t i, int number) {
  const auto real = static_cast<float>(number);
  uint32_t bits = 0;
  std::memcpy(&bits, &real, sizeof bits);
  switch (dtype) {
    case DataType::kFloat16:
      return Put(to, i, static_cast<_Float16>(real));
    case DataType::kBFloat16:
      return Put(to, i, static_cast<uint16_t>(bits >> 16));
    case DataType::kFloat32:
      return Put(to, i, real);
    case DataType::kFloat64:
      return Put(to, i, static_cast<double>(number));
    default:
      break;
  }
  const auto whole = static_cast<int64_t>(number);  // little endian
  std::memcpy(&to[i * SizeOf(dtype)], &whole, SizeOf(dtype));
}

// From 1 to 11: a product of two fits into int8, and into bfloat16's 8 bits.
std::vector<char> Numbers(DataType dtype, int64_t count, int rank) {
  std::vector<char> values(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    PutNumber(values, dtype, static_cast<size_t>(i), static_cast<int>((3 * i + 5 * rank) % 11) + 1);
  }
  return values;
}

// `in` and `out` are numbers of blocks.
struct Operation {
  std::string name;
  int64_t in_blocks = 1, out_blocks = 1;
  std::function<Work(Communicator& world, Buffer in, Buffer out)> call;
};

Operation AllReduce(ReduceOp op) {
  return {"all_reduce " + std::string(Name(op)), 1, 1,
          [op](Communicator& world, Buffer in, Buffer out) { return world.AllReduce(in, out, op); }};
}

std::vector<Operation> Operations(DataType dtype, int rank, int size) {
  std::vector<Operation> all;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
    all.push_back(AllReduce(op));
  }
  if (!IsFloat(dtype)) {
    for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) all.push_back(AllReduce(op));
  }
  using W = Communicator&;
  all.push_back({"reduce", 1, 1,
                 [=](W world, Buffer in, Buffer out) { return world.Reduce(in, out, ReduceOp::kSum, size - 1); }});
  all.push_back({"reduce_scatter", size, 1,
                 [](W world, Buffer in, Buffer out) { return world.ReduceScatter(in, out, ReduceOp::kMax); }});
  all.push_back({"broadcast", 1, 1, [=](W world, Buffer in, Buffer) { return world.Broadcast(in, size - 1); }});
  all.push_back({"gather", 1, size, [](W world, Buffer in, Buffer out) { return world.Gather(in, out, 0); }});
  all.push_back({"scatter", size, 1, [=](W world, Buffer in, Buffer out) { return world.Scatter(in, out, size - 1); }});
  all.push_back({"all_gather", 1, size, [](W world, Buffer in, Buffer out) { return world.AllGather(in, out); }});
  all.push_back({"all_to_all", size, size, [](W world, Buffer in, Buffer out) { return world.AllToAll(in, out); }});
  all.push_back({"all_to_all in place", size, size, [](W world, Buffer in, Buffer) { return world.AllToAll(in, in); }});
  all.push_back({"a batch", 1, 2, [](W world, Buffer in, Buffer out) {
                   const Buffer low(out.data, in.count, out.dtype, out.memory, out.device);
                   Buffer high = low;
                   high.data = static_cast<char*>(out.data) + static_cast<size_t>(in.count) * SizeOf(out.dtype);
                   return Batch(world).AllReduce(in, low, ReduceOp::kSum).AllReduce(in, high, ReduceOp::kMax).Submit();
                 }});
  if (size > 1) {
    all.push_back({"send to the next", 1, 1, [=](W world, Buffer in, Buffer out) {
                     return Batch(world).Send(in, (rank + 1) % size).Recv(out, (rank + size - 1) % size).Submit();
                   }});
  }
  return all;
}

std::string Check(ProcessRank& self, const cuda::CudaApi& api, const Operation& operation, DataType dtype,
                  int64_t count) {
  std::vector<char> in = Numbers(dtype, count * operation.in_blocks, self.rank);
  std::vector<char> out(static_cast<size_t>(count * operation.out_blocks) * SizeOf(dtype), 7);
  const DeviceBytes device_in(api, in), device_out(api, out);
  const auto host = [dtype](std::vector<char>& bytes) {
    return Buffer(bytes.data(), static_cast<int64_t>(bytes.size() / SizeOf(dtype)), dtype);
  };
  absl::Status status = operation.call(*self.world, host(in), host(out)).Wait();
  if (!status.ok()) return "on the host: " + status.ToString();
  status = operation.call(*self.world, device_in.buffer(dtype), device_out.buffer(dtype)).Wait();
  if (!status.ok()) return status.ToString();
  if (device_in.bytes() != in) return "another input";
  return device_out.bytes() == out ? "" : "another result";
}

std::string CheckAll(ProcessRank& self) {
  const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda("");
  if (!api.ok()) return api.status().ToString();
  std::string problems;
  for (const DataType dtype : {DataType::kInt8, DataType::kUint8, DataType::kInt16, DataType::kUint16, DataType::kInt32,
                               DataType::kUint32, DataType::kInt64, DataType::kUint64, DataType::kFloat16,
                               DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const int64_t count : {1, 1003}) {
      for (const Operation& operation : Operations(dtype, self.rank, self.size)) {
        const std::string problem = Check(self, **api, operation, dtype, count);
        if (problem.empty()) continue;
        problems +=
            operation.name + " of " + std::to_string(count) + " " + std::string(Name(dtype)) + ": " + problem + "\n";
        if (problems.size() > 2000) return problems;
      }
    }
  }
  return problems;
}

class NcclOperations : public NcclGpuTest {};

TEST_F(NcclOperations, OperationsGiveTheHostsBytesInOneRank) { Run(1, CheckAll); }
TEST_F(NcclOperations, OperationsGiveTheHostsBytesInTwoRanks) { Run(2, CheckAll); }

// Several chunks, on a stream of its own, one call behind the other.
TEST_F(NcclOperations, OperationsAreInOrderOnAStream) {
  Run(2, [](ProcessRank& self) -> std::string {
    const absl::StatusOr<const cuda::CudaApi*> api = cuda::LoadCuda("");
    if (!api.ok()) return api.status().ToString();
    constexpr int64_t kCount = 3'000'001;
    const DeviceBytes data(**api, Numbers(DataType::kInt32, kCount, 0));
    CallOptions options;
    if ((*api)->cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(&options.stream), cudaStreamNonBlocking) !=
        cudaSuccess) {
      return "no stream";
    }
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) {  // doubles each time
      const Buffer buffer = data.buffer(DataType::kInt32);
      works.push_back(self.world->AllReduce(buffer, buffer, ReduceOp::kSum, options));
    }
    for (Work& work : works) {
      if (const absl::Status status = work.Wait(); !status.ok()) return status.ToString();
    }
    std::vector<char> expected = Numbers(DataType::kInt32, kCount, 0);
    for (int64_t i = 0; i < kCount; ++i) {
      PutNumber(expected, DataType::kInt32, static_cast<size_t>(i), 1024 * (static_cast<int>(3 * i % 11) + 1));
    }
    return data.bytes() == expected ? "" : "another result";
  });
}

}  // namespace
}  // namespace cohort::comm
