// PrefetchingLoader, after torch's DataLoader: its own threads make batches ahead of the training loop.
//
//   PrefetchingLoader<Batch> loader(steps, [&](int64_t step) { return MakeBatch(step); }, {.workers = 2});
//   while (auto batch = loader.next()) Train(batch->to(device));
//
//   workers   [batch 3]  [batch 4]      in any order, at most `depth` ahead
//   loop      batch 0, 1, 2 ...         in order, whatever the number of workers
//
// With a GPU, batches lie in pinned memory, from which copies run beside computation (non_blocking).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::trainer {

struct PrefetchingLoaderOptions {
  int workers = 1;         // threads
  int depth = 4;           // batches that may be ready or in progress
  bool pin_memory = true;  // if there is a GPU
};

// Returns a copy in pinned memory if there is a GPU, otherwise the tensor itself.
at::Tensor PinMemory(const at::Tensor& tensor);

inline void PinTensors(at::Tensor& tensor) { tensor = PinMemory(tensor); }
template <typename A, typename B>
void PinTensors(std::pair<A, B>& values) {
  PinTensors(values.first);
  PinTensors(values.second);
}
template <typename... Ts>
void PinTensors(std::tuple<Ts...>& values) {
  std::apply([](auto&... value) { (PinTensors(value), ...); }, values);
}
template <typename T>
void PinTensors(std::vector<T>& values) {
  for (T& value : values) PinTensors(value);
}

// To pin a Batch of your own type, overload PinTensors in its namespace.
template <typename Batch>
class PrefetchingLoader {
 public:
  // Makes batches 0 to count - 1 by calling `make`, from several workers at the same time. Throws c10::Error for
  // options below 1, and std::system_error when the system gives no more threads.
  PrefetchingLoader(int64_t count, std::function<Batch(int64_t)> make, PrefetchingLoaderOptions options = {})
      : count_(count), make_(std::move(make)), options_(options), slots_(Checked(options).depth) {
    try {
      for (int i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { Work(); });
    } catch (...) {
      Stop();
      throw;
    }
  }
  // Blocks until running calls of `make` have returned.
  ~PrefetchingLoader() { Stop(); }
  PrefetchingLoader(const PrefetchingLoader&) = delete;
  PrefetchingLoader& operator=(const PrefetchingLoader&) = delete;

  // Returns the next batch, or nothing after the last. Blocks until the batch is there. Throws what `make` threw for
  // it; after that there are no more batches. Only one thread at a time may call it.
  std::optional<Batch> next() {
    runtime::MutexLock lock(mutex_);
    if (taken_ == count_ || stopping_) return std::nullopt;
    Slot& slot = slots_[taken_ % slots_.size()];
    while (!slot.batch.has_value() && slot.error == nullptr) changed_.Wait(mutex_);
    if (slot.error != nullptr) {
      stopping_ = true;
      changed_.NotifyAll();
      std::rethrow_exception(slot.error);
    }
    std::optional<Batch> batch = std::move(slot.batch);
    slot.batch.reset();
    ++taken_;
    changed_.NotifyAll();
    return batch;
  }
  int64_t count() const { return count_; }

 private:
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };
  static const PrefetchingLoaderOptions& Checked(const PrefetchingLoaderOptions& options) {
    TORCH_CHECK(options.workers >= 1 && options.depth >= 1, "PrefetchingLoader: ", options.workers, " workers and ",
                options.depth, " batches; it needs at least one of each");
    return options;
  }

  void Stop() {
    {
      runtime::MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Work() {
    for (;;) {
      int64_t number = 0;
      {
        runtime::MutexLock lock(mutex_);
        while (!stopping_ && begun_ < count_ && begun_ >= taken_ + static_cast<int64_t>(slots_.size())) {
          changed_.Wait(mutex_);
        }
        if (stopping_ || begun_ >= count_) return;
        number = begun_++;
      }
      Slot made;
      try {
        made.batch.emplace(make_(number));
        if constexpr (requires { PinTensors(*made.batch); }) {
          if (options_.pin_memory) PinTensors(*made.batch);
        }
      } catch (...) {
        made.batch.reset();
        made.error = std::current_exception();
      }
      runtime::MutexLock lock(mutex_);
      slots_[number % slots_.size()] = std::move(made);
      changed_.NotifyAll();
    }
  }

  const int64_t count_;
  const std::function<Batch(int64_t)> make_;
  const PrefetchingLoaderOptions options_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::vector<Slot> slots_;  // batch i is in slot i modulo depth
  int64_t begun_ = 0, taken_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cohort::trainer
