#include "launcher/agent/rendezvous_link.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <utility>
#include <vector>

#include "launcher/base/addresses.h"
#include "launcher/control/rendezvous.h"
#include "launcher/environment/cpus.h"
#include "runtime/base/deadline.h"
#include "runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;

std::string ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string OnInterface(const std::string& interface) {
  if (interface.empty()) return "; bring its network up";
  std::string all;
  for (const std::string& address : OwnAddresses()) all += (all.empty() ? "" : ", ") + address;
  return " on --iface " + interface + "; it has " + (all.empty() ? "none" : all);
}

}  // namespace

absl::StatusOr<std::string> RendezvousLink::Host(const v1::NodeStart& start, RendezvousServer::Options options,
                                                 RendezvousServer::OnFinished on_finished) {
  if (start.across_hosts()) options.host = "[::]";  // IPv4 too; where the kernel has no IPv6, gRPC takes 0.0.0.0
  options.identity = {start.ca_certificate(), start.certificate(), start.private_key()};
  absl::StatusOr<std::unique_ptr<RendezvousServer>> server = absl::UnavailableError("no port");
  for (uint32_t port = start.first_port(); !server.ok() && port <= start.last_port(); ++port) {
    options.port = static_cast<int>(port);
    server = RendezvousServer::Start(start.plan(), options, on_finished);
  }
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  const std::string address = server_->address();
  if (!start.across_hosts()) return address;
  std::string addresses = FormatAddresses(OwnAddresses(start.interface()), PortOf(address));
  if (!addresses.empty()) return addresses;
  return absl::UnavailableError("this machine has no address that others may reach" + OnInterface(start.interface()));
}

absl::Status RendezvousLink::Join(const v1::NodeStart& start, const std::string& addresses,
                                  RendezvousClient::Callbacks callbacks, const std::function<bool()>& given_up) {
  COHORT_ASSIGN_OR_RETURN(const std::string address,
                          FirstReachable(addresses, Deadline::After(std::chrono::seconds(10))));
  data_interface_ip_ = LocalAddressTowards(address);
  if (!start.interface().empty()) {
    const std::vector<std::string> own = OwnAddresses(start.interface());
    if (own.empty()) {
      return absl::InvalidArgumentError("this machine has no address" + OnInterface(start.interface()));
    }
    data_interface_ip_ = own[0];
  }
  v1::NodeOffer offer;
  offer.set_protocol(kRendezvousProtocol);
  offer.set_node(start.node());
  offer.set_name(start.name());
  offer.set_host_id(ReadBootId());
  offer.set_cpu_count(static_cast<uint32_t>(AvailableCpus().size()));
  offer.set_address(data_interface_ip_);
  offer.set_master_port(static_cast<uint32_t>(FindFreePort(start.first_port(), start.last_port())));
  auto client =
      RendezvousClient::Connect(address, {start.ca_certificate(), start.certificate(), start.private_key()}, offer,
                                std::move(callbacks), Deadline::After(std::chrono::seconds(30)), given_up);
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  return absl::OkStatus();
}

void RendezvousLink::Send(const v1::FromAgent& message) {
  if (client_) (void)client_->Send(message);
}

void RendezvousLink::RequestStop(const std::string& reason, int exit_code, int signal) {
  if (server_) server_->RequestStop(reason, exit_code, signal);
}

void RendezvousLink::GiveNotice(int signal) {
  if (server_) server_->GiveNotice(signal);
}

void RendezvousLink::TellAgentEnded(uint32_t agent, const std::string& text) {
  if (server_) server_->TellAgentEnded(agent, text);
}

void RendezvousLink::Close() {
  if (client_) client_->Close(Deadline::After(std::chrono::seconds(1)));
}

}  // namespace cohort::launcher
