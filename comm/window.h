// Window: memory in the node segment, which all ranks of the host map. Collectives on it move every byte once: peers
// read inputs and store results where they lie. Private memory costs twice as much.
#pragma once

#include <cstddef>

#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm {

// One rank's window, made by Communicator::AllocateWindow. Movable; frees its memory when it goes.
//
// Lifetime: operations on the memory must be done before the window goes, and it must go before its runtime does. A
// window ends with its runtime, and so with its epoch (runtime/runtime.h). All communicators of the process may use it,
// whichever made it; parts of it too, and several at once. After a group has failed the memory stays valid, but what
// its pending operations would have written is undefined, and a peer that was stopped in the middle of a store may
// still finish that store (256 KiB at the most).
class Window {
 public:
  Window() = default;
  ~Window() { Reset(); }
  Window(Window&& other) noexcept { *this = static_cast<Window&&>(other); }
  Window& operator=(Window&& other) noexcept;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Zeroed at first, aligned to a page; null when size() is 0.
  void* data() const { return data_; }
  // Bytes, as this rank asked for them.
  size_t size() const { return size_; }

 private:
  friend class Communicator;
  Window(runtime::Runtime* runtime, runtime::SegmentBlock block, void* data, size_t size)
      : runtime_(runtime), block_(block), data_(data), size_(size) {}
  void Reset();

  runtime::Runtime* runtime_ = nullptr;
  runtime::SegmentBlock block_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cohort::comm
