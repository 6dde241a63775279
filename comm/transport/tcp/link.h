// The program's handle of one link.
#pragma once

#include <cstdint>

#include "cohort/comm/transport/tcp/link_state.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm::tcp {

class TcpLink : public Link {
 public:
  // Both outlive it. `shares_cpu`: this rank takes turns on its CPU with others.
  TcpLink(LinkTable* table, LinkState* state, bool shares_cpu)
      : table_(table), state_(state), look_cost_(shares_cpu ? kLookOnce : kLook) {}
  ~TcpLink() override { table_->Release(state_); }
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  Progress TrySend(SendOperation& operation) override { return state_->sender.TrySend(operation); }
  Progress TryRecv(RecvOperation& operation) override { return state_->receiver.TryRecv(operation); }
  bool wants_early_receives() const override { return true; }
  InlineTerms inline_terms() const override {
    return {.most_bytes = kMostShortBytes, .look_cost = look_cost_, .calls_kernel = true};
  }

 private:
  // Looks into a socket, in looks into shared memory: 16 of them fit into an inline run, about 4 us. Where another rank
  // should run rather than this one look again, one fits.
  static constexpr int kLook = 4;
  static constexpr int kLookOnce = 1 << 20;

  LinkTable* const table_;
  LinkState* const state_;
  const int look_cost_;
};

}  // namespace cohort::comm::tcp
