// The rendezvous behind a port: gRPC with mutual TLS around the state machine of launcher/control/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/control/hosted_rendezvous.h"
#include "cohort/launcher/control/standby/standby.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Any thread may call it. OnNews and OnFinished come from a thread of its own.
class RendezvousServer : public HostedRendezvous {
 public:
  struct Options {
    // Numeric addresses to bind, all at one port. An empty list, and nothing else, asks for all of the machine's.
    std::vector<std::string> hosts = {"127.0.0.1"};
    int port = 0;          // 0: any free one
    int last_port = 0;     // above `port`: the first free one of those
    TlsIdentity identity;  // must name kRendezvousName
    OnNews on_news = {};
  };

  // Listens and starts the job's clock (JobPlan.join_timeout_ms). kInvalidArgument: the plan or the identity is
  // malformed. kUnavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(v1::JobPlan plan, Options options,
                                                                 OnFinished on_finished);
  // As Start, for a standby that continues from its copy of the rendezvous (replicated_rendezvous.h). The agents come
  // with NodeOffer.resume.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> TakeOver(StandbyCopy copy, const v1::TakeOver& order,
                                                                    Options options, OnFinished on_finished);
  // Ends all streams at once. Blocks for two seconds at most. Agents see the rendezvous as lost unless they had the
  // report.
  ~RendezvousServer() override;
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // Returns the address that agents dial, such as "127.0.0.1:40123". Several are separated by commas; "[::]:40123"
  // means all of the machine's.
  const std::string& address() const;

  void OnEvent(Event order) override;

 private:
  class Rep;
  explicit RendezvousServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace cohort::launcher
