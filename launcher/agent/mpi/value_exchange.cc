#include "cohort/launcher/agent/mpi/value_exchange.h"

#include <memory>
#include <utility>

namespace cohort::launcher {

void ValueExchange::Fetch(const std::string& round, const std::vector<size_t>& members, size_t own, const Then& then) {
  struct Gathered {
    std::vector<std::string> values;
    size_t missing = 0;
  };
  std::vector<size_t> others;
  for (const size_t member : members) {
    if (member != own) others.push_back(member);
  }
  if (others.empty()) return then({});
  const auto gathered = std::make_shared<Gathered>();
  gathered->values.resize(others.size());
  gathered->missing = others.size();
  for (size_t i = 0; i < others.size(); ++i) {
    store_->Get(KeyOf(round, others[i]), [gathered, i, then](std::string value) {
      gathered->values[i] = std::move(value);
      if (--gathered->missing == 0) then(gathered->values);
    });
  }
}

}  // namespace cohort::launcher
