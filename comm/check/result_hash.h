// --check results: hashes of what calls gave this rank, where all ranks must get the same.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// Whether a call must give all ranks of a group the same bits, but for those of a reduction's NaNs.
bool GivesAllTheSame(const CollectiveRequest& request);

// OK, or kUnimplemented for a call whose results `checks` asks to compare and nobody can: in CUDA memory, where NCCL's
// messages carry no hash. Equal on all members. `size`: of the group.
absl::Status CheckComparable(const CollectiveRequest& request, const runtime::Checks& checks, int size);

// The hash of the result of a call that is done, never 0; 0 where ranks may get different results, or it lies in CUDA
// memory. All NaNs of a reduction count as one: their signs and payloads may differ. `size`: of the group.
uint64_t HashResult(const CollectiveRequest& request, int size);

// All results so far of the calls of one provider, which begin in one order on all members.
class ResultChain {
 public:
  // The signature of a call that begins, whose members must have had the same results until now.
  uint64_t Sign(uint64_t signature) const { return runtime::ChainSignature(results_, signature); }
  // `hash`: of HashResult. Returns what the call's record holds of it.
  uint32_t Add(uint64_t hash) {
    if (hash == 0) return 0;
    results_ = runtime::ChainSignature(results_, hash);
    return static_cast<uint32_t>(hash >> 32) | 1;
  }

 private:
  uint64_t results_ = 0;
};

}  // namespace cohort::comm
