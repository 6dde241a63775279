// The bytes that ranks have sent, by axis of the mesh. --dry-run predicts them (gpt_plan.h).
#pragma once

#include <string>

#include "cohort/trainer/examples/gpt/gpt_training.h"
#include "cohort/trainer/transfer/communication_ledger.h"

namespace cohort::examples {

// A table of the calls in `ledger` with a line for each axis and operation; ranks that sent the same are on one line.
// Without --mesh there is one axis, "all ranks". Collective over the world.
std::string TrafficTable(const Training& training, const trainer::CommunicationLedger& ledger);

}  // namespace cohort::examples
