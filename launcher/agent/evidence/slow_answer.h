// Waits for what a thread has to say that may hang in the kernel, such as in a file system whose server is gone: in a
// loop, up to a limit. A thread that hangs is left behind; meanwhile no other is begun.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cohort/launcher/base/bounded_call.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

class SlowAnswer {
 public:
  // Writes the answer to the descriptor, which is closed for it afterwards. It must own all that it uses.
  using Work = std::function<void(int out)>;
  using Done = std::function<void(const std::string& bytes)>;

  // At most `max_bytes` of an answer are read.
  SlowAnswer(EventLoop* loop, size_t max_bytes) : loop_(loop), max_bytes_(max_bytes) {}
  ~SlowAnswer() { Close(); }
  SlowAnswer(const SlowAnswer&) = delete;
  SlowAnswer& operator=(const SlowAnswer&) = delete;

  // Begins `work` on a thread of its own. `done` is called once with what was written: when all writers have closed the
  // descriptor, or at the limit; never from within this call. Returns false where an earlier thread still hangs, or the
  // system has no thread or descriptor left. One call at a time.
  bool Begin(Work work, std::chrono::milliseconds limit, Done done);

 private:
  void Read();
  void Finish();
  void Close();

  EventLoop* loop_;
  const size_t max_bytes_;
  const std::shared_ptr<std::atomic<bool>> works_ = std::make_shared<std::atomic<bool>>(false);
  std::optional<BoundedCall> call_;
  EventLoop::TimerId timer_ = 0;
  runtime::FileDescriptor out_;
  std::string bytes_;
  Done done_;
};

}  // namespace cohort::launcher
