// The trainer reports errors as exceptions, as libtorch users expect. Everything below it returns absl::Status. This is
// the one place where a status becomes an exception.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "c10/util/Exception.h"

namespace cohort::trainer {

// A collective, the job or a peer failed. what() has the status' message and libtorch's backtrace.
// what_without_backtrace() has the message alone.
class DistributedError : public c10::Error {
 public:
  DistributedError(absl::StatusCode code, const std::string& message)
      : c10::Error({"cohort::trainer", __FILE__, static_cast<uint32_t>(__LINE__)}, message), code_(code) {}
  absl::StatusCode code() const { return code_; }

 private:
  absl::StatusCode code_;
};

// Throws DistributedError unless `status` is OK. `context` says what was being done.
void ThrowUnlessOk(const absl::Status& status, const std::string& context);
// As ThrowUnlessOk, for a collective of a training step. If ranks waited in vain, called something else or have ended
// in order, the error names Join too. That happens when one rank has fewer batches than the others.
void ThrowUnlessAllCame(const absl::Status& status, const std::string& context);

}  // namespace cohort::trainer
