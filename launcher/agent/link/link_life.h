// The life of an agent's way to the rendezvous.
#pragma once

namespace cohort::launcher {

enum class LinkLife {
  kApart,     // not joined yet
  kJoining,   // Join dials the first host
  kJoined,    // a host is reached
  kWaiting,   // the host is lost, or the next one can't be reached; another may take over
  kLeaving,   // a thread ends the stream to a host that is none any more
  kDialling,  // a thread dials the next host: what comes is of a stream that is not the client's yet
  kDone,      // the rendezvous says nothing more: after a report or a refusal, or no other host can take over
  kLost,      // given up; what comes now comes too late
};

// Whether a link may go from `from` to `to`:
//   apart    -> joining, joined (the rendezvous is this agent's own)
//   joining  -> joined, waiting (called away: the first host was not reached), lost (nothing was reached)
//   joined   -> waiting, leaving (another is the host now), done, lost
//   waiting  -> leaving, done, lost
//   leaving  -> dialling, lost
//   dialling -> joined, waiting, lost
//   done     -> leaving, lost
constexpr bool MayFollow(LinkLife from, LinkLife to) {
  switch (to) {
    case LinkLife::kApart:
      return false;
    case LinkLife::kJoining:
      return from == LinkLife::kApart;
    case LinkLife::kJoined:
      return from == LinkLife::kApart || from == LinkLife::kJoining || from == LinkLife::kDialling;
    case LinkLife::kWaiting:
      return from == LinkLife::kJoining || from == LinkLife::kJoined || from == LinkLife::kDialling;
    case LinkLife::kLeaving:
      return from == LinkLife::kJoined || from == LinkLife::kWaiting || from == LinkLife::kDone;
    case LinkLife::kDialling:
      return from == LinkLife::kLeaving;
    case LinkLife::kDone:
      return from == LinkLife::kJoined || from == LinkLife::kWaiting;
    case LinkLife::kLost:
      return from != LinkLife::kApart && from != LinkLife::kLost;
  }
  return false;
}

}  // namespace cohort::launcher
