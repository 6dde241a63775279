// The one place where the transport meets the whole runtime; everything else needs the segment alone.
#include "cohort/comm/transport/shm/shm_transport.h"

namespace cohort::comm {

ShmTransport::ShmTransport(runtime::Runtime& runtime, ShmOptions options)
    : ShmTransport(
          runtime.segment(), runtime.rank(),
          [&runtime](int rank) { return runtime.node_of(rank) == runtime.node() ? runtime.local_rank_of(rank) : -1; },
          options) {}

}  // namespace cohort::comm
