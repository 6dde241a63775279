// The rendezvous behind a port: gRPC with mutual TLS around the state machine of launcher/control/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/control/standby/standby.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RendezvousServer {
 public:
  struct Options {
    // Numeric addresses to bind, all at one port; never all of the machine's unless asked for, which is by none.
    std::vector<std::string> hosts = {"127.0.0.1"};
    int port = 0;          // 0: any free one
    int last_port = 0;     // above `port`: the first free one of those
    TlsIdentity identity;  // must name kRendezvousName
    // What dlaunch has to hear while the job goes on: restart, lost_node, members, standbys. From the server's own
    // thread, as OnFinished.
    std::function<void(v1::FromNode)> on_news = {};
  };
  // Called once, from the server's own thread, after the agents were told: must return soon and not destroy the server.
  using OnFinished = std::function<void(v1::JobReport)>;

  // Listens and starts the job's clock (JobPlan.join_timeout_ms). kInvalidArgument: the plan or the identity is
  // malformed; kUnavailable: the address can't be bound.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(v1::JobPlan plan, Options options,
                                                                 OnFinished on_finished);
  // The same for a standby that goes on where its copy of the rendezvous is (replicated_rendezvous.h). The agents come
  // with NodeOffer.resume.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> TakeOver(StandbyCopy copy, const v1::TakeOver& order,
                                                                    Options options, OnFinished on_finished);
  // Ends all streams at once, within two seconds at most. Agents see the rendezvous as lost unless they had the report.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // "127.0.0.1:40123", as agents dial it; all that there are, separated by commas; "[::]:40123" for all of the
  // machine's.
  const std::string& address() const;

  // The `number` of these three: see ToNode.number.
  // Ends the job: agents end their ranks, then OnFinished. Any thread; never blocks. Twice does nothing more. With
  // `signal` ranks that ask for notices of a preemption may stop by themselves within the grace.
  void RequestStop(std::string reason, int exit_code, int signal = 0, uint64_t number = 0);
  // A notice of a preemption: ranks that ask for it are told and agree on a step to stop at, the programs of others get
  // the signal. Any thread; never blocks.
  void GiveNotice(int signal, uint64_t number = 0);
  // That agent and all that it had started live no more, and how that came: what takes its place need not wait. Any
  // thread; never blocks.
  void TellAgentEnded(uint32_t agent, std::string text, uint64_t number = 0);
  // dlaunch has noted who may take over. Any thread; never blocks.
  void NoteStandbys(v1::Standbys standbys);

 private:
  class Rep;
  explicit RendezvousServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace cohort::launcher
