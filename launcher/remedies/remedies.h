// Stable ids of errors that have a remedy. An error gets its id where it is made; README.md explains each.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace cohort::launcher {

// The errors that have a remedy: a name for each line of remedies.def.
enum class Remedy {
#define COHORT_REMEDY(id, name) name,
#include "cohort/launcher/remedies/remedies.def"
#undef COHORT_REMEDY
};

// Everything here is pure.

// "loopback-down"
std::string_view IdOf(Remedy remedy);

// The error with the id, which it keeps wherever the status goes. It takes the place of one that `error` has. The
// message stays as it is: TextOf shows the id. An OK status stays one.
absl::Status WithRemedy(Remedy remedy, absl::Status error);
// The same with absl::InvalidArgumentError(message).
absl::Status InvalidArgumentError(Remedy remedy, const std::string& message);
// `error` with the id of `cause`, or without one as `cause` is: for an error that says the same in other words.
absl::Status WithRemedyOf(const absl::Status& cause, absl::Status error);
// `cause` with `before` in front of its message. Code and id stay. An OK status stays one.
absl::Status Prefixed(const std::string& before, const absl::Status& cause);

// The error as users read it: its message, then its id: "... ip link set lo up [loopback-down]". Without an id it is
// the message; "" for an OK status. Every text that is made of a status is made by this one.
std::string TextOf(const absl::Status& error);
// The same for an error that is a text from the start.
std::string WithRemedy(Remedy remedy, std::string_view text);
// Whether `text` ends with an id. It can't tell an id from a user's words, so it is for texts of Cohort's own
// processes.
bool EndsWithRemedy(std::string_view text);

}  // namespace cohort::launcher
