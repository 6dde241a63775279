// An agent's way to the rendezvous: the stream to it, and on the first node the rendezvous itself.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/v1/rendezvous.pb.h"
#include "launcher/rpc/client.h"
#include "launcher/rpc/server.h"

namespace cohort::launcher {

class RendezvousLink {
 public:
  // Hosts the rendezvous of start.plan. Returns the addresses that others reach it at, separated by commas, best first.
  // The callbacks come from a thread of the server's. Not OK: no port, no address on --iface, a malformed plan.
  absl::StatusOr<std::string> Host(const v1::NodeStart& start, RendezvousServer::Options callbacks,
                                   RendezvousServer::OnFinished on_finished);

  // Joins it at the first of `addresses` that answers, as the node that `start` names. Callbacks: see RendezvousClient.
  // Blocks for 40 s at most, or until `given_up`, which is asked now and then, says so.
  absl::Status Join(const v1::NodeStart& start, const std::string& addresses, RendezvousClient::Callbacks callbacks,
                    const std::function<bool()>& given_up);

  bool hosting() const { return server_ != nullptr; }
  // This machine's address in the network between nodes, once joined.
  const std::string& data_interface_ip() const { return data_interface_ip_; }

  // A stream that has ended is reported by on_lost; what is sent then, or before Join, is dropped.
  void Send(const v1::FromAgent& message);
  // These three where this node hosts the rendezvous, which carries them out: see RendezvousServer.
  void RequestStop(const std::string& reason, int exit_code, int signal = 0);
  void GiveNotice(int signal);
  void TellAgentEnded(uint32_t agent, const std::string& text);
  // Writes what is queued, for a second at most, and ends the stream.
  void Close();

 private:
  std::string data_interface_ip_;
  std::unique_ptr<RendezvousServer> server_;
  std::unique_ptr<RendezvousClient> client_;
};

}  // namespace cohort::launcher
