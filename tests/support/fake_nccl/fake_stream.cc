#include <utility>

#include "tests/support/fake_nccl/fake_state.h"

namespace fake {

State& GlobalState() {
  static State state;
  return state;
}

Stream& StreamOf(void* stream) {
  static Stream legacy;
  return stream == nullptr ? legacy : *static_cast<Stream*>(stream);
}

void Follow(const TaskPointer& task, const TaskPointer& earlier) {
  if (earlier == nullptr || earlier->done) return;
  ++task->waiting;
  earlier->followers.push_back(task);
}

void StartIfReady(const TaskPointer& task) {
  if (task->started || task->waiting > 0) return;
  task->started = true;
  if (task->run != nullptr && !task->aborted) task->run();
  if (task->finished_by_run || task->aborted) Finish(task);
}

void Finish(const TaskPointer& task) {
  if (task->done) return;
  task->done = true;
  std::vector<TaskPointer> followers;
  followers.swap(task->followers);
  task->run = nullptr;
  for (const TaskPointer& follower : followers) {
    --follower->waiting;
    StartIfReady(follower);
  }
  GlobalState().changed.NotifyAll();
}

void AbortTask(const TaskPointer& task) {
  task->aborted = true;
  if (task->started) Finish(task);
}

void Enqueue(Stream& stream, const std::vector<TaskPointer>& tasks) {
  const auto join = std::make_shared<Task>();
  for (const TaskPointer& task : tasks) {
    Follow(task, stream.last);
    Follow(join, task);
  }
  stream.last = join;
  for (const TaskPointer& task : tasks) StartIfReady(task);
  StartIfReady(join);
}

void Submit(Stream& stream, const Operation& operation) {
  if (stream.capture != nullptr) {
    stream.capture->operations.push_back(operation);
  } else {
    operation(stream);
  }
}

void SubmitSimple(void* handle, std::function<void()> run) {
  Submit(StreamOf(handle), [run = std::move(run)](Stream& stream) {
    const auto task = std::make_shared<Task>();
    task->run = run;
    Enqueue(stream, {task});
  });
}

}  // namespace fake
