#include "cohort/launcher/agent/mpi/value_exchange.h"

#include <utility>

namespace cohort::launcher {

void ValueExchange::Publish(const Round& round, size_t own, const std::string& values) {
  pieces_[round.name][round.number] = store_->Put(KeyOf(round, own), values);
}

void ValueExchange::Fetch(const Round& round, const std::vector<size_t>& members, size_t own, const Then& then) {
  std::vector<size_t> others;
  for (const size_t member : members) {
    if (member != own) others.push_back(member);
  }
  if (others.empty()) {
    Forget(round, own);
    return then({});
  }
  const auto gathered = std::make_shared<Gathered>();
  gathered->then = then;
  gathered->values.resize(others.size());
  gathered->missing.insert(others.begin(), others.end());
  fetches_.insert(gathered);
  for (size_t i = 0; i < others.size(); ++i) {
    store_->Get(KeyOf(round, others[i]), [this, gathered, i, member = others[i], round, own](std::string value) {
      gathered->values[i] = std::move(value);
      gathered->missing.erase(member);
      if (!gathered->missing.empty()) return;
      fetches_.erase(gathered);
      Forget(round, own);
      gathered->then(gathered->values);
    });
  }
}

std::set<size_t> ValueExchange::missing() const {
  std::set<size_t> members;
  for (const auto& gathered : fetches_) members.insert(gathered->missing.begin(), gathered->missing.end());
  return members;
}

void ValueExchange::Forget(const Round& round, size_t own) {
  std::map<uint64_t, size_t>& pieces = pieces_[round.name];
  while (!pieces.empty() && pieces.begin()->first + 2 <= round.number) {
    store_->Remove(KeyOf({round.name, pieces.begin()->first}, own), pieces.begin()->second);
    pieces.erase(pieces.begin());
  }
}

}  // namespace cohort::launcher
