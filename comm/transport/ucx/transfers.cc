#include "cohort/comm/transport/ucx/transfers.h"

#include <utility>

namespace cohort::comm::ucx {

Transfer* Transfers::New() {
  if (free_ == nullptr) {
    transfers_.push_back(std::make_unique<Transfer>());
    free_ = transfers_.back().get();
    free_->all = this;
  }
  Transfer* transfer = std::exchange(free_, free_->next);
  transfer->next = nullptr;
  transfer->done = nullptr;
  transfer->owner = nullptr;
  transfer->index = 0;
  return transfer;
}

void Transfers::Release(Transfer* transfer) {
  if (transfer->copy.data != nullptr) transfer->pool->Put(std::exchange(transfer->copy, {}));
  transfer->next = std::exchange(free_, transfer);
}

ucs_status_t Transfers::Started(Transfer* transfer, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_PTR(request)) {
    ++under_way_;
    return UCS_INPROGRESS;
  }
  Release(transfer);
  return UCS_PTR_STATUS(request);
}

void Transfers::OnSent(void* request, ucs_status_t status, void* argument) {
  auto* transfer = static_cast<Transfer*>(argument);
  Transfers* all = transfer->all;
  all->api_.ucp_request_free(request);
  --all->under_way_;
  if (transfer->done != nullptr) transfer->done(transfer->owner, transfer, status);
  all->Release(transfer);
}

void Transfers::OnReceived(void* request, ucs_status_t status, size_t, void* argument) {
  OnSent(request, status, argument);
}

}  // namespace cohort::comm::ucx
