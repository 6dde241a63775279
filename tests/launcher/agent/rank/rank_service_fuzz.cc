// An agent's socket for its ranks under arbitrary datagrams: several connections that say hello, ask, lie, repeat
// themselves, send bytes that are nothing, or vanish, while the rendezvous answers what was asked and what was not.
// Real sockets and the real event loop, in one thread. Whatever comes:
//
//   - who has not been let in reaches nobody: nothing goes up for it, and it is told why;
//   - requests go up with numbers of the agent's own, each used once;
//   - of a preemption the rendezvous hears one wish, one answer after its notice, and one end;
//   - every packet that a rank gets is a message within the size that a rank can read.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/agent/rank/rank_service.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/fuzz_messages.h"

namespace cohort::launcher {
namespace {

constexpr int kRanks = 3;
constexpr uint32_t kFirstRank = 2;  // of the node
constexpr int kClients = 4;
constexpr int kMaxSteps = 500;

// A node of many, in the middle of the job.
const v1::Assignment& TheAssignment() {
  static const v1::Assignment kAssignment = [] {
    v1::Assignment assignment;
    assignment.set_epoch(1);
    assignment.set_world_size(500);
    assignment.mutable_job()->set_job_id("job-1");
    assignment.mutable_job()->set_job_secret(std::string(32, 's'));
    assignment.mutable_placement()->set_node(1);
    for (uint32_t i = 0; i < kRanks; ++i) {
      v1::RankPlacement& rank = *assignment.mutable_placement()->add_ranks();
      rank.set_rank(kFirstRank + i);
      rank.set_local_rank(i);
    }
    for (uint32_t i = 0; i < 450; ++i) {
      v1::Node& node = *assignment.add_nodes();
      node.set_index(i);
      node.set_name(std::string(250, 'n'));
    }
    return assignment;
  }();
  return kAssignment;
}

runtime::FileDescriptor Connect(const std::string& address) {
  runtime::FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  FuzzCheck(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0);
  return fd;
}

// The messages that a rank may send.
std::string TakePacket(FuzzInput* input) {
  v1::RankMessage message;
  switch (input->Below(15)) {
    case 0:
      message.mutable_hello()->set_protocol(input->Below(8) == 7 ? input->Number32() : runtime::kAgentProtocol);
      message.mutable_hello()->set_local_rank(input->Number32());
      break;
    case 1:
      message.mutable_nodes()->set_request(input->Number());
      message.mutable_nodes()->set_first(input->Number32());
      break;
    case 2:
      message.mutable_put()->set_request(input->Number());
      message.mutable_put()->set_key(input->Text());
      message.mutable_put()->set_value(input->Text());
      break;
    case 3:
      message.mutable_get()->set_request(input->Number());
      message.mutable_get()->set_key(input->Text());
      message.mutable_get()->set_timeout_ms(input->Number32());
      break;
    case 4:
      message.mutable_stall()->set_group(input->Number());
      TakeMembers(input, message.mutable_stall()->mutable_members());
      break;
    case 5:
      TakeFailure(input, message.mutable_group_failure());
      break;
    case 6:
      message.mutable_goodbye();
      break;
    case 7:
      message.mutable_kill()->set_text(input->Text());
      break;
    case 8:  // at the limit of a packet, and beyond it
      return std::string(kMaxRankPacket - 1 + input->Below(3), static_cast<char>(input->Byte()));
    case 9:
      message.mutable_preemption();
      break;
    case 10:
      message.set_preemption_step(input->Number());
      break;
    case 11:
      message.set_preempted(input->Number());
      break;
    case 12:
      message.mutable_next_epoch();
      break;
    case 13:
      message.mutable_variable()->set_request(input->Number());
      message.mutable_variable()->set_kind(static_cast<v1::VariableRequest::Kind>(input->Below(8)));
      message.mutable_variable()->set_key(input->Text());
      message.mutable_variable()->set_value(input->Text());
      message.mutable_variable()->set_amount(static_cast<int64_t>(input->Number()));
      break;
    default:
      return input->Text();
  }
  return message.SerializeAsString();
}

class Node {
 public:
  Node()
      : address_(NewSocketAddress()),
        service_(
            &loop_, TheAssignment(), "127.0.0.1",
            {.to_rendezvous = [this](const v1::FromAgent& message) { OnMessage(message); },
             .to_agent = {},
             // The last rank is another process, which this one does not descend from.
             .group_of = [](int local_rank) { return local_rank + 1 < kRanks ? ::getpid() : 1; },
             .on_event =
                 [this](const RankService::Event& event) { std::visit([this](const auto& it) { On(it); }, event); }}) {
    FuzzCheck(service_.Start(address_).ok());
    for (runtime::FileDescriptor& client : clients_) client = Connect(address_);
    Turn();
  }

  void Step(FuzzInput* input) {
    const uint32_t what = input->Below(16);
    runtime::FileDescriptor& client = clients_[input->Below(kClients)];
    switch (what) {
      case 9:
        client = Connect(address_);  // the old one vanishes
        break;
      case 10:
        return Answer(input);
      case 11:
        return Announce(input);
      case 12:
        return service_.TakeRest(static_cast<int>(input->Below(kRanks)), input->Bool());
      case 13:
        return service_.MarkLost(static_cast<int>(input->Below(kRanks)));
      case 14: {
        v1::InspectRequest request;
        request.set_request(input->Number());
        request.set_group(input->Number());
        request.set_sequence(input->Number());
        TakeMembers(input, request.mutable_members());
        FuzzCheck(service_.Inspect(request).calls_size() <= kRanks);
        return;
      }
      case 15:
        return ReadAll(client);
      default: {
        const std::string packet = TakePacket(input);
        (void)!::send(client.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    }
    Turn();
  }

  void End() {
    for (runtime::FileDescriptor& client : clients_) {
      ReadAll(client);
      client.Close();
    }
    Turn();
    FuzzCheck(present_.empty());
  }

 private:
  void On(const RankService::Hello& event) {
    FuzzCheck(event.local_rank >= 0 && event.local_rank + 1 < kRanks && event.pid == ::getpid());
    FuzzCheck(present_.insert(event.local_rank).second);
    let_in_.insert(event.local_rank);
  }
  void On(const RankService::Recorded& event) {  // by a process that does not join, and whose end is no news
    FuzzCheck(event.local_rank >= 0 && event.local_rank + 1 < kRanks && present_.count(event.local_rank) == 0);
    let_in_.insert(event.local_rank);
  }
  void On(const RankService::Goodbye& event) {
    FuzzCheck(let_in_.count(event.local_rank) > 0);
    present_.erase(event.local_rank);
  }
  void On(const RankService::EpochLeft&) { FuzzCheck(false); }  // this job is not restarted
  void On(const RankService::KillWanted& event) { FuzzCheck(let_in_.count(event.local_rank) > 0); }
  void On(const RankService::Vanished& event) { FuzzCheck(present_.erase(event.local_rank) == 1); }

  // Two rounds of the loop: who comes is let in, and what they have sent by then is read.
  void Turn() {
    for (int i = 0; i < 2; ++i) {
      loop_.Post([this] { loop_.Quit(); });
      loop_.Run();
    }
  }

  void OnMessage(const v1::FromAgent& message) {
    // The node's answer may come without any rank, when they have all ended.
    if (message.has_preemption_step()) {
      FuzzCheck(message.preemption_step().epoch() == TheAssignment().epoch());
      return FuzzCheck(noticed_ && !std::exchange(answered_, true));
    }
    FuzzCheck(!let_in_.empty());
    if (message.has_preemption()) return FuzzCheck(!std::exchange(wished_, true));
    if (message.has_preempted()) return FuzzCheck(!std::exchange(preempted_, true));
    FuzzCheck(message.has_put() || message.has_get() || message.has_variable() || message.has_stall() ||
              message.has_group_failure());
    if (message.has_variable()) FuzzCheck(message.variable().request() > latest_request_);
    if (message.has_variable()) latest_request_ = message.variable().request();
    if (message.has_put()) FuzzCheck(message.put().request() > latest_request_);
    if (message.has_get()) FuzzCheck(message.get().request() > latest_request_);
    if (message.has_put()) latest_request_ = message.put().request();
    if (message.has_get()) latest_request_ = message.get().request();
  }

  // The rendezvous answers, perhaps something that was asked.
  void Answer(FuzzInput* input) {
    const uint64_t request = input->Bool() ? latest_request_ : input->Number();
    if (input->Bool()) {
      v1::PutReply reply;
      reply.set_request(request);
      reply.set_error(input->Text());
      return service_.store().OnPutReply(reply);
    }
    if (input->Bool()) {
      v1::VariableReply reply;
      reply.set_request(request);
      reply.set_value(input->Text());
      return service_.store().OnVariableReply(reply);
    }
    v1::GetReply reply;
    reply.set_request(request);
    reply.set_found(input->Bool());
    reply.set_value(input->Text());
    service_.store().OnGetReply(reply);
  }
  void Announce(FuzzInput* input) {
    const uint32_t what = input->Below(4);
    if (what == 1) {
      v1::GroupFailure failure;
      TakeFailure(input, &failure);
      return service_.OnGroupFailure(failure);
    }
    if (what == 2) {
      v1::PreemptionNotice notice;
      notice.set_signal(input->Signed32());
      noticed_ = true;
      return service_.OnPreemption(notice);
    }
    if (what == 3) {
      v1::StopStep step;
      step.set_step(input->Number());
      return service_.OnStopStep(step);
    }
    v1::RanksLost lost;
    for (uint32_t i = input->Below(4); i > 0; --i) lost.add_ranks(input->Number32());
    lost.set_text(input->Text());
    service_.OnRanksLost(lost);
  }

  static void ReadAll(const runtime::FileDescriptor& client) {
    static std::string packet(2 * kMaxRankPacket, '\0');
    for (;;) {
      const ssize_t n = ::recv(client.get(), packet.data(), packet.size(), MSG_DONTWAIT);
      if (n <= 0) return;
      FuzzCheck(static_cast<size_t>(n) <= kMaxRankPacket);
      v1::AgentMessage message;
      FuzzCheck(message.ParseFromArray(packet.data(), static_cast<int>(n)));
      FuzzCheck(message.kind_case() != v1::AgentMessage::KIND_NOT_SET);
    }
  }

  const std::string address_;
  std::set<int> let_in_;   // local ranks whose hello was taken
  std::set<int> present_;  // of those, the ones that have neither said goodbye nor vanished
  uint64_t latest_request_ = 0;
  bool noticed_ = false;  // of a preemption
  // Messages that go up once at the most.
  bool wished_ = false;
  bool answered_ = false;
  bool preempted_ = false;
  EventLoop loop_;
  RankService service_;
  runtime::FileDescriptor clients_[kClients];
};

void Try(FuzzInput input) {
  Node node;
  for (int steps = 0; !input.empty() && steps < kMaxSteps; ++steps) node.Step(&input);
  node.End();
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::launcher::Try(cohort::FuzzInput(data, size));
  return 0;
}
