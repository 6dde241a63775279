// Tensors in window memory (comm/window.h), whose collectives move every byte once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/comm/window.h"

namespace cohort::trainer {

// A window of `bytes` bytes of `group`; none where the node segment has no room on some rank. Errors begin with `what`,
// the thing that a user was doing. Collective; blocks, for default_timeout() (collectives.h) if a rank does not come.
// Throws DistributedError.
std::optional<comm::Window> WindowIfThereIsRoom(comm::Communicator& group, size_t bytes, const std::string& what);

// A zeroed tensor of `elements` elements in a row. On the CPU it lies in a window of `group`, which must outlive it as
// must the runtime, or in ordinary memory where the node segment has no room for it on some rank (all ranks get the
// same kind); on other devices it is an ordinary tensor. `what` as above. Collective over `group` on the CPU; blocks.
// Throws DistributedError.
at::Tensor ZerosInWindow(comm::Communicator& group, int64_t elements, const at::TensorOptions& options,
                         const std::string& what);

// Moves the memory of `whole`, a whole contiguous tensor with its views, into a window of `group`, which must outlive
// it as must the runtime, or until LeaveWindowForGood. Nothing on other devices, for no elements, and where the node
// segment has no room on some rank: then false. Collective over `group`; blocks; equal sizes on all ranks. Throws
// DistributedError.
bool EnterWindow(comm::Communicator& group, const at::Tensor& whole, const std::string& what);

// Before the window of `whole` (a tensor of ZerosInWindow, no view of one) goes: its views, which others may hold for
// longer than the job lasts, get ordinary memory with the same values. Nothing where there are none. No operation on it
// may be under way. Local.
void LeaveWindow(const at::Tensor& whole);
// The same where `whole` itself is used on.
void LeaveWindowForGood(const at::Tensor& whole);

}  // namespace cohort::trainer
