// Answers what ranks ask of the job's key-value store and of its variables.
#pragma once

#include <optional>

#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/parts/key_value_store.h"
#include "cohort/launcher/control/parts/variables.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StoreRequests {
 public:
  StoreRequests(const JobTime& time, Outbox* outbox) : time_(time), outbox_(outbox) {}

  void OnPut(ConnectionId from, const v1::PutRequest& put);
  void OnGet(ConnectionId from, const v1::GetRequest& get);
  void OnVariable(ConnectionId from, const v1::VariableRequest& request);
  // Answers those whose time is up.
  void Expire();
  std::optional<TimePoint> NextExpiry() const;
  // The connection waits for nothing any more.
  void Forget(ConnectionId connection);
  void Clear();

 private:
  const JobTime& time_;
  Outbox* const outbox_;
  KeyValueStore store_;
  Variables variables_;
};

}  // namespace cohort::launcher
