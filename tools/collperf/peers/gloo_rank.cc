// A rank of Gloo in a comparison: its functions with separate input and output, over TCP on the loopback interface.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tools/measure/system_rank.h"

namespace cohort::collperf {
namespace {

using measure::Operation;
using measure::SystemCall;

class Gloo final : public measure::SystemRank {
 public:
  Gloo(const std::string& folder, int rank, int ranks)
      : store_(folder), context_(std::make_shared<gloo::rendezvous::Context>(rank, ranks)) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store_, device);
  }
  int rank() const override { return context_->rank; }
  int ranks() const override { return context_->size; }
  std::string Run(const SystemCall& call) override {
    try {
      Call(call);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

 private:
  void Call(const SystemCall& call);
  template <typename Options>
  Options WithBuffers(const SystemCall& call, int64_t in_count, int64_t out_count) {
    Options options(context_);
    options.setInput(const_cast<float*>(call.in), static_cast<size_t>(in_count));
    options.setOutput(call.out, static_cast<size_t>(out_count));
    return options;
  }

  gloo::rendezvous::FileStore store_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> scratch_;
};

void Gloo::Call(const SystemCall& call) {
  const int64_t all = call.count * ranks();
  const bool is_root = rank() == call.root;
  const auto count = static_cast<size_t>(call.count);
  const auto sum = [](void* out, const void* a, const void* b, size_t n) { gloo::sum<float>(out, a, b, n); };
  switch (call.operation) {
    case Operation::kBroadcast: {
      gloo::BroadcastOptions options(context_);
      options.setOutput(is_root ? const_cast<float*>(call.in) : call.out, count);
      options.setRoot(call.root);
      return gloo::broadcast(options);
    }
    case Operation::kReduce: {
      gloo::ReduceOptions options(context_);
      if (!is_root && scratch_.size() < count) scratch_.resize(count);  // it wants an output on every rank
      options.setInput(const_cast<float*>(call.in), count);
      options.setOutput(is_root ? call.out : scratch_.data(), count);
      options.setReduceFunction(sum);
      options.setRoot(call.root);
      return gloo::reduce(options);
    }
    case Operation::kAllReduce: {
      auto options = WithBuffers<gloo::AllreduceOptions>(call, call.count, call.count);
      options.setReduceFunction(sum);
      return gloo::allreduce(options);
    }
    case Operation::kGather: {
      gloo::GatherOptions options(context_);
      options.setInput(const_cast<float*>(call.in), count);
      if (is_root) options.setOutput(call.out, static_cast<size_t>(all));
      options.setRoot(call.root);
      return gloo::gather(options);
    }
    case Operation::kScatter: {
      gloo::ScatterOptions options(context_);
      std::vector<float*> parts;
      for (int i = 0; is_root && i < ranks(); ++i) parts.push_back(const_cast<float*>(call.in) + i * call.count);
      if (is_root) options.setInputs(parts, count);
      options.setOutput(call.out, count);
      options.setRoot(call.root);
      return gloo::scatter(options);
    }
    case Operation::kAllGather: {
      auto options = WithBuffers<gloo::AllgatherOptions>(call, call.count, all);
      return gloo::allgather(options);
    }
    case Operation::kAllToAll: {
      auto options = WithBuffers<gloo::AlltoallOptions>(call, all, all);
      return gloo::alltoall(options);
    }
    case Operation::kBarrier: {
      gloo::BarrierOptions options(context_);
      return gloo::barrier(options);
    }
    case Operation::kReduceScatter:
    case Operation::kSendRecv:
      break;
  }
}

}  // namespace
}  // namespace cohort::collperf

// gloo_rank SESSION RANKS PLACE FOLDER RANK
int main(int argc, char** argv) {
  if (argc != 6) return 2;
  cohort::collperf::Gloo system(argv[4], std::atoi(argv[5]), std::atoi(argv[2]));
  return cohort::measure::Serve(system, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
}
