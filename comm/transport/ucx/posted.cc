#include "cohort/comm/transport/ucx/posted.h"

#include <algorithm>

namespace cohort::comm::ucx {

bool Pieces::InFlight() const {
  return std::any_of(in_flight.begin(), in_flight.end(),
                     [](Transfer* t) { return t != nullptr && t->copy.data == nullptr; });
}
bool Pieces::HasRoom() const {
  return std::any_of(in_flight.begin(), in_flight.end(), [](Transfer* t) { return t == nullptr; });
}
bool Pieces::AddTransfer(Transfer* transfer) {
  const auto room = std::find(in_flight.begin(), in_flight.end(), nullptr);
  if (room == in_flight.end()) return false;
  *room = transfer;
  return true;
}
void Pieces::DropTransfer(const Transfer* transfer) {
  std::replace(in_flight.begin(), in_flight.end(), const_cast<Transfer*>(transfer), static_cast<Transfer*>(nullptr));
}

}  // namespace cohort::comm::ucx
