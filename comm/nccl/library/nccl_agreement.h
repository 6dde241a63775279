// The members' agreement, before NCCL is entered, on whether and how their communicator is made. NCCL hangs
// or crashes over members that differ; here they are told so in words.
//
//   every rank   puts its offer into the job's store: version of NCCL, settings, what it could reuse
//   group rank 0 gets all of them and puts the decision: a new communicator and its id, one to reuse, or why not
//   every rank   gets the decision
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm::nccl {

struct Offer {
  int version = 0;       // NCCL's; 0: there is none
  std::string why;       // there is none
  std::string settings;  // "NCCL_ALGO=Ring NCCL_PROTO=Simple": variables that must be equal
  std::string idle;      // a communicator of the same ranks that nobody uses; empty: none
  std::string revoked;   // the communicator of the group that this one is shrunk from; empty: none
  Abilities abilities;
};

struct Decision {
  enum class Kind : char {
    kNew = 'n',    // text: the unique id
    kReuse = 'r',  // text: Offer::idle
    kShrink = 's',
    kStaged = 'h',  // through host memory; text: why
    kRefuse = 'x',  // text: why
  };
  Kind kind = Kind::kNew;
  std::string text;
  Abilities abilities{};  // of all members
};

// Pure. offers: by group rank; members: world ranks. The text of kNew is left to be filled in.
Decision Decide(std::span<const Offer> offers, std::span<const int> members);

// For the store. Parsing never trusts: false when `text` is none.
std::string Serialize(const Offer& offer);
bool Parse(const std::string& text, Offer* offer);
std::string Serialize(const Decision& decision);
bool Parse(const std::string& text, Decision* decision);

// How an agreement waits.
struct Waits {
  // Drives the engine until `done`, which any thread may ask; not OK when it is time to give up. `doing` is what is
  // waited for.
  std::function<absl::Status(const std::function<bool()>& done, const std::string& doing)> drive;
  // Makes the thread that drives the engine ask again. Any thread may call it.
  std::function<void()> wake;
};

// Blocks, in `waits` only: the store is asked by another thread meanwhile. `name` is unique for the agreement, equal on
// all members. make_id gives the text of kNew and is called by group rank 0 only.
absl::StatusOr<Decision> Agree(const GroupContext& group, const std::string& name, const Offer& mine,
                               const std::function<absl::StatusOr<std::string>()>& make_id, runtime::Deadline deadline,
                               const Waits& waits);

}  // namespace cohort::comm::nccl
