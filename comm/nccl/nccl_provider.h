// Serves calls on CUDA memory by NCCL: one NCCL call, enqueued on the caller's stream. README.md has the rules.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm {

struct NcclOptions {
  std::string nccl_library;  // Environment's COHORT_NCCL_LIBRARY; empty: the loaded or installed one
  std::string cuda_library;  // Environment's COHORT_CUDA_LIBRARY
  std::string settings;      // Environment's NCCL settings, which all members must have alike
  // Makes the provider of host memory that serves, through pinned memory, what NCCL can't: of collectives, or of sends
  // and receives, on the group's device_index-th device. Its links are not those of the group's other providers. Null:
  // such calls are refused.
  std::function<std::unique_ptr<Provider>(bool messages, int device_index)> make_host_provider;
  // Why NCCL must not serve this group, whose calls then go through host memory. Equal on all members; empty: it may.
  std::string forbidden = {};
};

// The provider of one group; `group` outlives it. Makes no communicator yet: the first call on a device does, and
// blocks until all members have made theirs, driving the engine meanwhile (GroupContext::drive), at most for the call's
// timeout. Later calls do not block. Calls on the k-th device of this rank (Runtime::devices) meet those on the k-th
// devices of the others: device group k.
//
// Launch enqueues on AcceptedCall::stream before it returns. The Work is done when the device has finished the call;
// Work::WaitOnStream makes another stream wait for it without waiting here. Calls that NCCL can't serve block until
// they are done, and so do those of a group where a rank has no NCCL; a second such call of the group from inside one
// (a callback) is refused, and the group goes on.
//
// While the stream is being captured into a CUDA graph a call is only put into the graph: its Work is done at once,
// WaitOnStream joins other streams to the capture, and what a replay does is NCCL's affair. The group's first call on a
// device can't be captured.
//
// kUnimplemented when built without NCCL, or when libcudart is missing; names the remedy.
absl::StatusOr<std::unique_ptr<Provider>> MakeNcclProvider(const GroupContext* group, const NcclOptions& options);

}  // namespace cohort::comm
