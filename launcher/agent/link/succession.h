// An agent's part in the rendezvous' way from one host to the next: what the next host may lack of its messages, and on
// a standby the copy of the rendezvous. A job without standbys has one host, and its agents keep nothing.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "cohort/launcher/control/standby/standby.h"
#include "cohort/launcher/rpc/client.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Succession {
 public:
  // None: this agent does not know yet, or there is no next host.
  static std::unique_ptr<Succession> None();
  static std::unique_ptr<Succession> Of(const v1::NodeStart& start);
  virtual ~Succession() = default;

  // How long the word of a next host may take after the loss of one. 0: none follows.
  virtual std::chrono::milliseconds next_host_within() const = 0;
  bool has_next_host() const { return next_host_within() > std::chrono::milliseconds(0); }

  // A message of this agent. True: write it now; false: it is written when another host has taken over.
  virtual bool Say(const v1::FromAgent& message) = 0;
  // A message of the rendezvous. Returns what is to be said again: after `resumed`.
  virtual std::vector<v1::FromAgent> Hear(const v1::ToAgent& message) = 0;
  // The stream has ended, or is no longer read.
  virtual void Leave() = 0;
  // Adds to an offer what this agent has of the rendezvous.
  virtual void Resume(v1::NodeOffer* offer) = 0;

  // Whether this node has a copy of the rendezvous, and may be told to take over.
  virtual bool standing_by() = 0;
  // A page of the host's log. Any thread may call it; the host waits for the acknowledgement.
  virtual void OnPage(const v1::LogPage& page) = 0;
  // The stream that acknowledgements go to from now on, the latest one first if it had none; null: none is left. Not
  // owned.
  virtual void AcknowledgeTo(RendezvousClient* client) = 0;
  // Null: there is none.
  virtual std::unique_ptr<StandbyCopy> TakeCopy() = 0;

 protected:
  Succession() = default;
  Succession(const Succession&) = delete;
  Succession& operator=(const Succession&) = delete;
};

}  // namespace cohort::launcher
