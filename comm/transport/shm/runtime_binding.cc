#include "cohort/comm/transport/shm/runtime_binding.h"

namespace cohort::comm {

std::unique_ptr<ShmTransport> MakeShmTransport(runtime::Runtime& runtime, ShmOptions options) {
  const auto local_rank_of = [&runtime](int rank) {
    return runtime.node_of(rank) == runtime.node() ? runtime.local_rank_of(rank) : -1;
  };
  return std::make_unique<ShmTransport>(runtime.segment(), runtime.rank(), local_rank_of, options);
}

}  // namespace cohort::comm
