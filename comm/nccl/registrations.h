// Device memory that NCCL knows for as long as a communicator lives.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/comm/nccl/library/nccl_api.h"

namespace cohort::comm::nccl {

// Used by one thread at a time.
class Registrations {
 public:
  // Whether the library can: by windows, or as registered buffers.
  static bool Possible(const NcclApi& nccl);

  // Makes memory known to the communicator; collective. ncclInProgress: NCCL is still at it, and fills in what is kept
  // here later.
  absl::StatusOr<ncclResult_t> Add(const NcclApi& nccl, ncclComm_t communicator, void* data, size_t bytes,
                                   const std::string& doing);
  bool empty() const { return made_.empty(); }
  void ReleaseAll(const NcclApi& nccl, ncclComm_t communicator);

 private:
  struct Registration {
    void* handle;
    bool window;
  };
  std::deque<Registration> made_;  // they keep their places
};

}  // namespace cohort::comm::nccl
