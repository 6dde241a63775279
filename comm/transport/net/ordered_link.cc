#include "cohort/comm/transport/net/ordered_link.h"

#include <cstring>
#include <string>

#include "absl/status/status.h"

namespace cohort::comm::net {

void CallHistory::Mismatch(int peer_rank, uint64_t signature, uint64_t message_bytes, RecvOperation* operation) const {
  operation->mismatch = true;
  operation->peer_signature = signature;
  for (const runtime::CallRecord& record : records_) {
    const uint64_t without_length = runtime::SignatureWithLength(signature, message_bytes);
    if (runtime::Carries(record, signature) || runtime::Carries(record, without_length)) {
      operation->peer_call = record;
    }
  }
  operation->error = absl::FailedPreconditionError(
      "rank " + std::to_string(peer_rank) + " sent a message of another call (" + std::to_string(message_bytes) +
      " bytes where " + std::to_string(operation->bytes) + " are expected)");
}

void Deliver(const RecvOperation& operation, uint64_t offset, const std::byte* data, size_t bytes) {
  std::byte* const place = operation.data + offset;
  if (operation.reduce == nullptr) {
    if (bytes > 0) std::memcpy(place, data, bytes);
    return;
  }
  const size_t count = bytes / operation.element_bytes;
  if (count == 0) return;
  const std::byte* const operand = operation.operand + offset;
  if (operation.incoming_first) {
    operation.reduce(place, data, operand, count);
  } else {
    operation.reduce(place, operand, data, count);
  }
}

}  // namespace cohort::comm::net
