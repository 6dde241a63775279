// The operations of a UCX worker that are under way, pooled, and UCX's callbacks at their ends.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/ucx/ucp_api.h"
#include "cohort/comm/transport/ucx/wire.h"

namespace cohort::comm::ucx {

// One UCX operation under way. Holds the header that UCX reads until the operation completes. Pooled by Transfers.
struct Transfer {
  struct Wire {
    MessageHeader header;
    runtime::CallRecord record;
  } wire;
  Hello hello;

  // Whom to tell: called once, from within Worker::Progress or Worker's own calls, then the transfer is reused.
  void (*done)(void* owner, Transfer* transfer, ucs_status_t status) = nullptr;
  void* owner = nullptr;
  size_t index = 0;  // the owner's own note
  // Holds the data if they are not in the user's memory; goes back to `pool` at the end.
  net::BufferPool::Block copy;
  net::BufferPool* pool = nullptr;

  class Transfers* all = nullptr;
  Transfer* next = nullptr;
};

// Not thread-safe: used by the worker's owner.
class Transfers {
 public:
  // `api` outlives it.
  explicit Transfers(const UcpApi& api) : api_(api) {}
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  Transfer* New();
  // UCX has been given the operation, and this is its answer. UCS_INPROGRESS: `done` will be called; else the transfer
  // is reused.
  ucs_status_t Started(Transfer* transfer, ucs_status_ptr_t request);
  // The number of transfers whose `done` has not been called.
  size_t under_way() const { return under_way_; }

  // For UCX, with the transfer as user data: it has been sent, or received.
  static void OnSent(void* request, ucs_status_t status, void* transfer);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* transfer);

 private:
  void Release(Transfer* transfer);

  const UcpApi& api_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  Transfer* free_ = nullptr;
  size_t under_way_ = 0;
};

}  // namespace cohort::comm::ucx
