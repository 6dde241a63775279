// A rank's identity as its agent, or a tape, tells it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::runtime {

// kInternal: `what` is wrong with it.
absl::Status BadWelcome(const std::string& what);
// All but the nodes. kFailedPrecondition: the other side speaks another protocol. kInternal: it makes no sense.
absl::StatusOr<Identity> ReadWelcome(const v1::Welcome& welcome);
// Adds nodes that follow those which the identity has. kInternal: they do not.
absl::Status AddNodes(const google::protobuf::RepeatedPtrField<v1::Node>& nodes, Identity* identity);
// The nodes cover the world, and this rank lies where it should; otherwise kInternal.
absl::Status CheckNodes(const Identity& identity);

// The identity with all nodes, and without its secret.
v1::Welcome WriteWelcome(const Identity& identity);

}  // namespace cohort::runtime
