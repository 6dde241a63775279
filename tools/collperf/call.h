// One call on fixed memory: starting it, and waiting until its result is there.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/communicator.h"
#include "tools/collperf/buffers.h"
#include "tools/collperf/session.h"
#include "tools/measure/operation.h"

namespace cohort::collperf {

struct Call {
  Session* session;
  comm::CallOptions options;
  measure::Operation operation;
  comm::DataType dtype;
  comm::ReduceOp op;
  int root;
  int64_t count;
  Place in;
  Place out;
  int64_t in_count;
  int64_t out_count;
  int64_t messages = 1;  // of an exchange, under way at a time
  bool staged = false;   // on a device: calls go through host memory

  size_t in_bytes() const { return static_cast<size_t>(in_count) * comm::SizeOf(dtype); }
  size_t out_bytes() const { return static_cast<size_t>(out_count) * comm::SizeOf(dtype); }

  // Makes `calls` calls one after the other, and returns when the results are there. On host memory the host waits for
  // each. On a device it puts them on the stream and waits once, for the last.
  absl::Status Run(int64_t calls = 1) const;
  // Brings what the host wrote to `in` and `out` to where the call finds it, and the result back. Nothing to do on host
  // memory.
  absl::Status Upload() const;
  absl::Status Download() const;

 private:
  comm::ConstBuffer Input() const;
  comm::Buffer Output() const;
  runtime::Work Start() const;
  // Sends to the next rank and receives from the one before.
  absl::Status ExchangeOnHost() const;
  absl::Status ExchangeStaged() const;
  runtime::Work StartExchangeOnDevice() const;
  absl::Status RunOnDevice(int64_t calls) const;
};

}  // namespace cohort::collperf
