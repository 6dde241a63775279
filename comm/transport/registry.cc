// The transports of this build. A transport itself knows nothing of this table; its entry says how it is made.
#include <utility>

#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/transport_set.h"
#include "comm/transport/ucx/ucx_transport.h"
#include "runtime/base/status_macros.h"
#include "runtime/env.h"

namespace cohort::comm {
namespace {

absl::StatusOr<std::unique_ptr<Transport>> MakeShm(runtime::Runtime& runtime, runtime::KeyValueStore&) {
  return std::make_unique<ShmTransport>(runtime);
}

absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(runtime::Runtime& runtime, runtime::KeyValueStore& store) {
  COHORT_ASSIGN_OR_RETURN(runtime::Environment environment, runtime::Environment::Read());
  UcxOptions options;
  options.library = environment.ucx_library;
  return MakeUcxTransport(runtime.identity(), &store, options);
}

}  // namespace

const std::vector<TransportEntry>& RegisteredTransports() {
  static const std::vector<TransportEntry> entries = {
#define COHORT_TRANSPORT(name, factory) {#name, &factory},
#include "comm/transport/transports.def"
#undef COHORT_TRANSPORT
  };
  return entries;
}

}  // namespace cohort::comm
