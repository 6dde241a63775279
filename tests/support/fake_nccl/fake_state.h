// Streams of the fake device: every operation is a task that starts when what it waits for has finished, as on a real
// device; nothing is done at the moment of the call.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cohort/runtime/base/mutex.h"

namespace fake {

struct Task;
using TaskPointer = std::shared_ptr<Task>;

// All guarded by State::mutex.
struct Task : std::enable_shared_from_this<Task> {
  std::function<void()> run;    // at its start; may be null
  bool finished_by_run = true;  // false: somebody calls Finish later
  bool aborted = false;         // finishes as soon as it starts
  bool started = false;
  bool done = false;
  int waiting = 0;  // number of other tasks that it waits for
  std::vector<TaskPointer> followers;
};

struct State {
  cohort::runtime::Mutex mutex;
  cohort::runtime::CondVar changed;
};
State& GlobalState();

struct Stream;
// The part that a graph repeats: puts an operation on a stream.
using Operation = std::function<void(Stream&)>;
struct Graph {
  std::vector<Operation> operations;
};
struct Stream {
  TaskPointer last;
  std::shared_ptr<Graph> capture;  // null: not capturing
  bool began_capture = false;      // here; else it has joined one
};

// The calling thread's.
int CurrentDevice();
// The stream of a handle; null names the process's default stream.
Stream& StreamOf(void* stream);
// Puts the tasks behind what is on the stream, beside each other.
void Enqueue(Stream& stream, const std::vector<TaskPointer>& tasks);
// Enqueues, or records while the stream is being captured.
void Submit(Stream& stream, const Operation& operation);
// The same for what `run` does at once when its turn comes.
void SubmitSimple(void* handle, std::function<void()> run);
void Follow(const TaskPointer& task, const TaskPointer& earlier);
void StartIfReady(const TaskPointer& task);
void Finish(const TaskPointer& task);
// Ends a task of a communicator that was aborted.
void AbortTask(const TaskPointer& task);

}  // namespace fake
