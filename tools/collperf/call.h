// One call on fixed memory: starting it, and waiting until its result is there.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/communicator.h"
#include "tools/collperf/buffers.h"
#include "tools/collperf/device_memory.h"
#include "tools/measure/operation.h"
#include "tools/measure/timing.h"

namespace cohort::collperf {

struct CallSpec {
  comm::Communicator* group;
  CudaDevice* device = nullptr;  // null: on host memory
  comm::CallOptions options = {};
  measure::Operation operation{};
  comm::DataType dtype = comm::DataType::kFloat32;
  comm::ReduceOp op = comm::ReduceOp::kSum;
  int root = 0;
  int64_t count = 0;  // elements of a block
  Place in = {};
  Place out = {};
  int64_t messages = 1;  // of an exchange, under way at a time
  bool staged = false;   // on a device: calls go through host memory
};

class Call final : public measure::MeasuredCall {
 public:
  explicit Call(CallSpec spec);

  // On host memory the host waits for each call. On a device it puts them on the stream and waits once, for the last.
  absl::Status Run(int64_t calls) const override;
  absl::Status Upload() const override;
  absl::Status Download() const override;
  Memory memory() const override { return {spec_.in.host, in_bytes_, spec_.out.host, out_bytes_}; }
  // Starts one call. On host memory it must not be an exchange.
  runtime::Work Start() const;

 private:
  int Next() const { return (spec_.group->rank() + 1) % spec_.group->size(); }
  int Previous() const { return (spec_.group->rank() + spec_.group->size() - 1) % spec_.group->size(); }
  comm::Buffer BufferAt(const Place& place, int64_t count) const;
  comm::ConstBuffer Input() const { return BufferAt(spec_.in, in_count_); }
  comm::Buffer Output() const { return BufferAt(spec_.out, out_count_); }
  // Sends to the next rank and receives from the one before.
  absl::Status ExchangeOnHost() const;
  absl::Status ExchangeStaged() const;
  runtime::Work StartExchangeOnDevice() const;
  absl::Status RunOnDevice(int64_t calls) const;

  CallSpec spec_;
  int64_t in_count_ = 0;
  int64_t out_count_ = 0;
  size_t in_bytes_ = 0;
  size_t out_bytes_ = 0;
};

}  // namespace cohort::collperf
