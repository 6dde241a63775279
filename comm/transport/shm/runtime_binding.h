// The one place where the transport meets the whole runtime; everything else needs the segment alone.
#pragma once

#include <memory>

#include "cohort/comm/transport/shm/shm_transport.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm {

// The transport of `runtime`'s segment, for the ranks of its node. `runtime` outlives it.
std::unique_ptr<ShmTransport> MakeShmTransport(runtime::Runtime& runtime, ShmOptions options = {});

}  // namespace cohort::comm
