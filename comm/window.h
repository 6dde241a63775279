// Window: memory in the node segment, which all ranks of the host map. Collectives on it move every byte once, because
// peers read inputs and store results where they lie. Private memory costs twice as much.
#pragma once

#include <cstddef>
#include <source_location>

#include "absl/status/statusor.h"
#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm {

class Communicator;
class Group;
struct CallOptions;

// One rank's window, made by Communicator::AllocateWindow. Movable. Its destructor frees the memory.
//
// Lifetime: operations on the memory must be done before the window is destroyed, and the window must be destroyed
// before its runtime, and so before its epoch ends (runtime/runtime.h). All communicators of the process may use it or
// parts of it, several at once.
//
// After a group has failed the memory stays valid, but holds anything where pending operations would have written. A
// peer that was stopped in the middle of a store may still finish that store, of at most 256 KiB.
class Window {
 public:
  Window() = default;
  ~Window() { Reset(); }
  Window(Window&& other) noexcept { *this = static_cast<Window&&>(other); }
  Window& operator=(Window&& other) noexcept;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Zeroed when allocated, aligned to a page. Null when size() is 0.
  void* data() const { return data_; }
  // The number of bytes that this rank asked for.
  size_t size() const { return size_; }

 private:
  friend class Communicator;
  // Communicator::AllocateWindow. `group` is the communicator's.
  static absl::StatusOr<Window> Allocate(Communicator& communicator, Group& group, size_t bytes,
                                         const CallOptions& options, std::source_location site);
  Window(runtime::Runtime* runtime, runtime::SegmentBlock block, void* data, size_t size)
      : runtime_(runtime), block_(block), data_(data), size_(size) {}
  void Reset();

  runtime::Runtime* runtime_ = nullptr;
  runtime::SegmentBlock block_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cohort::comm
