// The structs of the interface with some of their members named, as users write them: no warning, whatever is left out.
#include <array>
#include <complex>
#include <cstdint>
#include <cstdio>

#include "cohort/comm/batch.h"
#include "cohort/comm/communicator.h"

namespace {

struct Half {
  uint16_t bits = 0;
};

void Larger(void* out, const void* a, const void* b, int64_t count, cohort::comm::DataType, void*) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<const float*>(a)[i];
    const float y = static_cast<const float*>(b)[i];
    static_cast<float*>(out)[i] = x < y ? y : x;
  }
}

}  // namespace

template <>
struct cohort::comm::DataTypeOf<Half> {
  static constexpr DataType kValue = DataType::kFloat16;
};

namespace comm = cohort::comm;
namespace runtime = cohort::runtime;

int main() {
  const comm::UserReduceOp larger = {.function = Larger, .name = "larger"};
  const comm::CallOptions options = {.determinism = comm::Determinism::kReproducible, .user_op = &larger};
  const std::array<int64_t, 1> counts = {3};
  const comm::BlockLayout blocks = {.counts = counts};
  const comm::CommunicatorOptions of_group = {.transports = "shm"};
  absl::StatusOr<std::unique_ptr<runtime::Runtime>> joined =
      runtime::Runtime::Init({.init_timeout = std::chrono::seconds(30)});
  if (!joined.ok()) return 1;
  absl::StatusOr<std::unique_ptr<comm::Communicator>> world = comm::Communicator::World(**joined, of_group);
  if (!world.ok()) return 1;

  std::array<float, 3> values = {1, 2, 3};
  std::array<Half, 4> halves = {};
  std::array<std::complex<float>, 2> complex = {};
  std::array<long long, 2> integers = {4, 5};
  static_assert(comm::DataTypeOf<long long>::kValue == comm::DataTypeOf<int64_t>::kValue);
  comm::Batch batch(**world);
  batch.AllReduce(comm::ConstBuffer(values.data(), 3), comm::Buffer(values.data(), 3), comm::ReduceOp::kUser, options)
      .AllGatherV(comm::ConstBuffer(values.data(), 3), comm::Buffer(values.data(), 3), blocks)
      .Broadcast(comm::Buffer(halves.data(), 4), 0)
      .Broadcast(comm::Buffer(complex.data(), 4, comm::DataType::kFloat32), 0)
      .Broadcast(comm::Buffer(integers.data(), 2), 0, {.timeout = std::chrono::seconds(10)});
  const absl::Status status = batch.Submit().Wait();
  std::printf("%s\n", std::string(status.message()).c_str());
  return status.ok() && values[2] == 3 ? 0 : 1;
}
