// Compiled instead of the transport where UCX's headers were absent.
#include "cohort/comm/transport/ucx/ucx_transport.h"

namespace cohort::comm {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const runtime::Identity&, runtime::KeyValueStore*,
                                                            const UcxOptions&, std::string*) {
  return absl::UnimplementedError(
      "this build has no UCX, which ranks on different nodes need: install libucx-dev and build again with "
      "COHORT_WITH_UCX=ON");
}

}  // namespace cohort::comm
