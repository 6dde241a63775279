// A collective or message as NCCL announces it to a profiler plug-in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm::nccl_profiler {

// The values of comm::CollectiveKind and comm::DataType, as numbers.
struct AnnouncedCall {
  uint16_t kind = 0;
  uint16_t dtype = 0;  // 0: one that is not known here
  uint64_t count = 0;  // as NCCL counts: of all-gather and broadcast these are bytes
  int root = -1;
  int peer = -1;     // rank of the other side of a message; -1: a collective
  int channels = 1;  // the call ends when kernels on at least this number have ended; 0: NCCL announces no kernel
};

// A call by its function ("AllReduce", "Send", ...) and data type ("ncclFloat32", ...). `root_or_peer` counts where the
// function has one. Nothing where the function is null or not known here.
std::optional<AnnouncedCall> ReadCall(const char* function, const char* datatype, size_t count, int root_or_peer);

// The call as a record of a rank of a communicator with `size` ranks (0: not known). Its group, number and the other
// side's world rank are left open.
runtime::CallRecord ToRecord(const AnnouncedCall& call, int rank, int size);

}  // namespace cohort::comm::nccl_profiler
