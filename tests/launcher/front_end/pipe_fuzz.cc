// Fuzzes the messages that dlaunch and its agents read of each other, and the requests for its job that dlaunch reads.
// The first byte chooses:
//
//   - dlaunch itself, with pipes of agents that are none: they send messages of the protocol with any content, bytes
//     that are nothing, or end; meanwhile someone asks for the job, as `dlaunch status`, `top` and `kill` do. Whatever
//     comes, agents get messages and nothing else, and every answer is one that a packet holds;
//   - a stream of messages to an agent, or of one: it is the same however it is cut.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/message_pipe.h"
#include "cohort/launcher/front_end/front_end_inside.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/rendezvous.pb.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {

// FrontEnd::Run begins and ends what a process has once: signals, orphans. Here one follows another, and this is the
// part of it that they need.
absl::Status StartAgentsOf(FrontEnd* front_end);
EventLoop* LoopOf(FrontEnd* front_end);

template <auto kStartAgents, auto kLoop>
struct Inside {
  friend absl::Status StartAgentsOf(FrontEnd* front_end) { return (front_end->*kStartAgents)(); }
  friend EventLoop* LoopOf(FrontEnd* front_end) { return &(front_end->*kLoop); }
};
template struct Inside<&FrontEnd::StartAgents, &FrontEnd::loop_>;

namespace {

constexpr size_t kAgents = 4;  // the last is a spare
constexpr int kMaxSteps = 200;
constexpr char kPreamble[] = "agent:";
// No process has it: the kernel's are below 2^22.
constexpr pid_t kNoProcess = std::numeric_limits<pid_t>::max();

void TakeReport(FuzzInput* input, v1::JobReport* report) {
  report->set_exit_code(input->Signed32());
  report->set_headline(input->Text());
  for (uint32_t i = input->Below(3); i > 0; --i) report->add_last_lines(input->Text());
  for (uint32_t i = input->Below(3); i > 0; --i) report->add_others(input->Text());
  report->set_culprit_rank(input->Signed32());
  report->set_not_restarted(input->Text());
  report->set_preempted_by(input->Signed32());
  for (uint32_t i = input->Below(3); i > 0; --i) {
    v1::RankExit& exit = *report->add_exits();
    exit.set_rank(input->Number32());
    exit.set_exit_code(input->Signed32());
    exit.set_signal(input->Signed32());
    exit.add_last_lines(input->Text());
    exit.set_log_path(input->Text());
    exit.mutable_doing()->set_present(input->Bool());
    exit.mutable_doing()->set_call(input->Text());
  }
}

void TakeMembership(FuzzInput* input, v1::Membership* members) {
  for (uint32_t i = input->Below(5); i > 0; --i) {
    v1::NodePlacement& node = *members->add_placements();
    node.set_name(input->Text());
    for (uint32_t j = input->Below(4); j > 0; --j) node.add_ranks()->set_rank(input->Number32());
  }
  for (uint32_t i = input->Below(5); i > 0; --i) members->add_agents(input->Number32());
  for (uint32_t i = input->Below(3); i > 0; --i) members->add_changes(input->Text());
}

void TakeView(FuzzInput* input, v1::NodeView* view) {
  view->set_look(input->Number());
  for (uint32_t i = input->Below(4); i > 0; --i) {
    v1::RankView& rank = *view->add_ranks();
    rank.set_rank(input->Number32());
    rank.set_pid(input->Signed32());
    rank.set_cpu_ms(input->Number());
    rank.mutable_doing()->set_present(input->Bool());
    rank.mutable_doing()->set_call(input->Text());
    rank.mutable_doing()->set_site(input->Text());
    rank.mutable_doing()->set_age_ms(input->Number());
  }
}

v1::FromNode TakeFromNode(FuzzInput* input) {
  v1::FromNode message;
  if (input->Below(4) == 0) message.set_number(input->Number());
  switch (input->Below(13)) {
    case 0:
      message.set_listening(input->Text());
      break;
    case 1:
      message.mutable_output()->set_rank(input->Number32());
      message.mutable_output()->set_standard_error(input->Bool());
      message.mutable_output()->set_text(input->Text());
      message.mutable_output()->set_after_failure(input->Bool());
      message.mutable_output()->set_epoch(input->Number());
      break;
    case 2:
      TakeReport(input, message.mutable_report());
      break;
    case 3:
      message.set_failed(input->Text());
      break;
    case 4:
      message.set_notice(input->Text());
      break;
    case 5:
      message.set_ranks_lost(input->Text());
      break;
    case 6:
      TakeReport(input, message.mutable_restart()->mutable_report());
      message.mutable_restart()->set_number(input->Number32());
      message.mutable_restart()->set_delay_ms(input->Number32());
      message.mutable_restart()->set_spares(input->Number32());
      break;
    case 7:
      message.mutable_node_lost()->set_agent(input->Number32());
      message.mutable_node_lost()->set_text(input->Text());
      break;
    case 8:
      TakeMembership(input, message.mutable_members());
      break;
    case 9:
      message.mutable_standbys()->set_term(input->Number());
      for (uint32_t i = input->Below(4); i > 0; --i) message.mutable_standbys()->add_agents(input->Number32());
      message.mutable_standbys()->set_number(input->Number());
      break;
    case 10:
      message.set_host_silent(input->Number());
      break;
    case 11:
      TakeView(input, message.mutable_view());
      break;
    default:
      message.mutable_input_wanted()->set_bytes(input->Number());
      message.mutable_input_wanted()->set_closed(input->Bool());
  }
  return message;
}

v1::ToNode TakeToNode(FuzzInput* input) {
  v1::ToNode message;
  message.set_number(input->Number());
  switch (input->Below(4)) {
    case 0:
      message.mutable_start()->set_name(input->Text());
      message.mutable_start()->mutable_plan()->mutable_job()->add_programs()->add_command(input->Text());
      break;
    case 1:
      message.mutable_stop()->set_reason(input->Text());
      message.mutable_stop()->set_exit_code(input->Signed32());
      break;
    case 2:
      message.mutable_new_host()->set_addresses(input->Text());
      break;
    default:
      message.mutable_standard_input()->set_bytes(input->Text());
  }
  return message;
}

// A message of the stream, or bytes that are none with or without a length before them.
template <typename Message>
std::string TakePiece(FuzzInput* input, Message (*take)(FuzzInput*)) {
  std::string bytes;
  const uint32_t what = input->Below(8);
  if (what == 0) return input->Text();
  if (what == 1) {
    const std::string text = input->Text();
    return std::string(1, static_cast<char>(text.size() & 0x7f)) + text;
  }
  AppendDelimited(take(input), &bytes);
  return bytes;
}

template <typename Message>
struct ReadStream {
  MessageReader reader;
  std::vector<std::string> messages = {};
  bool broken = false;

  void Append(const std::string& bytes) {
    if (broken) return;
    reader.Append(bytes.data(), bytes.size());
    for (Message message;;) {
      const auto next = reader.Next(&message);
      broken = !next.ok();
      if (broken || !*next) return;
      messages.push_back(message.SerializeAsString());
    }
  }
};

template <typename Message>
void CutAnywhere(FuzzInput* input, Message (*take)(FuzzInput*)) {
  ReadStream<Message> whole;
  ReadStream<Message> cut;
  if (input->Bool()) {
    whole.reader.SkipUntil(kPreamble);
    cut.reader.SkipUntil(kPreamble);
  }
  const size_t step = 1 + input->Byte();
  std::string stream = input->Text() + kPreamble;
  for (int i = 0; !input->empty() && i < kMaxSteps; ++i) stream += TakePiece(input, take);
  whole.Append(stream);
  for (size_t at = 0; at < stream.size(); at += step) cut.Append(stream.substr(at, step));
  FuzzCheck(whole.messages == cut.messages && whole.broken == cut.broken);
}

// The job's end of an agent's pipes, as the agent has it.
struct AgentEnd {
  runtime::FileDescriptor input;
  runtime::FileDescriptor output;
  MessageReader reader;
};

class Dlaunch {
 public:
  explicit Dlaunch(FuzzInput* input) : job_(MakeJob(input)), front_end_(job_, std::nullopt) {
    FuzzCheck(StartAgentsOf(&front_end_).ok());
    Turn();
    ReadMessages();
    FuzzCheck(!job_id_.empty());
  }

  void Step(FuzzInput* input) {
    AgentEnd& agent = agents_[input->Below(kAgents)];
    const uint32_t what = input->Below(16);
    if (what == 0) {
      agent.output.Close();
    } else if (what < 4) {
      Ask(input);
    } else {
      const std::string piece = TakePiece(input, &TakeFromNode);
      if (agent.output.valid()) (void)!::write(agent.output.get(), piece.data(), piece.size());
    }
    Turn();
    ReadMessages();
    ReadAnswers();
  }

 private:
  Job MakeJob(FuzzInput* input) {
    Job job;
    job.id = NewJobId();
    job.options.on_failure = static_cast<OnFailure>(input->Below(3));
    job.options.max_restarts = job.options.on_failure == OnFailure::kRestart ? 3 : 0;
    job.options.standbys = input->Bool() ? 2 : 0;
    job.options.ranks_per_node = 2;
    job.options.programs = {{.command = {"/opt/train"}}};
    job.nodes.source = "nodes";
    job.nodes.spawner = SpawnerKind::kLocal;
    job.nodes.reached = std::make_shared<std::map<std::string, AgentProcess>>();
    const bool with_preamble = input->Bool();
    for (size_t i = 0; i < kAgents; ++i) {
      job.nodes.nodes.push_back({.name = "node" + std::to_string(i), .devices = {}, .cpus = {0, 1}});
      int to_agent[2];
      int from_agent[2];
      FuzzCheck(::pipe2(to_agent, O_CLOEXEC | O_NONBLOCK) == 0 && ::pipe2(from_agent, O_CLOEXEC | O_NONBLOCK) == 0);
      agents_[i].input = runtime::FileDescriptor(to_agent[0]);
      agents_[i].output = runtime::FileDescriptor(from_agent[1]);
      AgentProcess process{.pid = kNoProcess,
                           .input = runtime::FileDescriptor(to_agent[1]),
                           .output = runtime::FileDescriptor(from_agent[0]),
                           .preamble = with_preamble ? kPreamble : ""};
      job.nodes.reached->emplace(job.nodes.nodes[i].name, std::move(process));
      if (with_preamble && i > 0) (void)!::write(from_agent[1], kPreamble, sizeof kPreamble - 1);
    }
    const std::vector<NodeResources> placed(job.nodes.nodes.begin(), job.nodes.nodes.end() - 1);
    auto placement = Place(placed, {.ranks_per_node = 2, .devices_per_rank = std::nullopt});
    FuzzCheck(placement.ok());
    job.placement = *std::move(placement);
    auto spare = PlaceSpare(job.nodes.nodes.back(), job.placement, job.options.bind);
    FuzzCheck(spare.ok());
    job.spares.push_back(*std::move(spare));
    return job;
  }

  // Two rounds of the loop: who comes is let in, and what they have sent by then is read.
  void Turn() {
    EventLoop* const loop = LoopOf(&front_end_);
    for (int i = 0; i < 2; ++i) {
      loop->Post([loop] { loop->Quit(); });
      loop->Run();
    }
  }

  void ReadMessages() {
    for (AgentEnd& agent : agents_) {
      char buffer[16 << 10];
      for (ssize_t n = 0; (n = ::read(agent.input.get(), buffer, sizeof buffer)) > 0;) {
        agent.reader.Append(buffer, static_cast<size_t>(n));
      }
      for (v1::ToNode message;;) {
        const auto next = agent.reader.Next(&message);
        FuzzCheck(next.ok());
        if (!*next) break;
        FuzzCheck(message.kind_case() != v1::ToNode::KIND_NOT_SET);
        if (message.has_start() && message.start().has_plan()) job_id_ = message.start().plan().job().job_id();
      }
    }
  }

  void Ask(FuzzInput* input) {
    if (!asker_.valid() || input->Below(8) == 0) Connect();
    v1::JobRequest request;
    const uint32_t what = input->Below(8);
    request.set_protocol(what == 0 ? input->Number32() : kJobProtocol);
    request.set_stop(what == 1);
    request.set_at_once(input->Bool());
    request.set_first_node(input->Number32());
    request.set_ranks(input->Bool());
    request.set_first_rank(input->Number32());
    const std::string packet = what == 2 ? input->Text() : request.SerializeAsString();
    (void)!::send(asker_.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void Connect() {
    asker_ = runtime::FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const std::string address = kJobSocketPrefix + job_id_;
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    FuzzCheck(::connect(asker_.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0);
  }

  void ReadAnswers() {
    if (!asker_.valid()) return;
    static std::string packet(2 * kMaxRankPacket, '\0');
    for (;;) {
      const ssize_t n = ::recv(asker_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
      if (n == 0) asker_.Close();
      if (n <= 0) return;
      FuzzCheck(static_cast<size_t>(n) <= kMaxRankPacket);
      v1::JobAnswer answer;
      FuzzCheck(answer.ParseFromArray(packet.data(), static_cast<int>(n)));
      if (!answer.refused().empty()) continue;
      const v1::JobSnapshot& job = answer.snapshot();
      FuzzCheck(job.job_id() == job_id_ && (job.phase() == "running" || job.phase() == "ending"));
      FuzzCheck(static_cast<size_t>(job.nodes_size()) <= job.node_count());
    }
  }

  std::array<AgentEnd, kAgents> agents_;
  std::string job_id_;
  const Job job_;
  FrontEnd front_end_;
  runtime::FileDescriptor asker_;
};

void Try(FuzzInput input) {
  switch (input.Below(4)) {
    case 0:
      return CutAnywhere(&input, &TakeToNode);
    case 1:
      return CutAnywhere(&input, &TakeFromNode);
    default: {
      Dlaunch dlaunch(&input);
      for (int steps = 0; !input.empty() && steps < kMaxSteps; ++steps) dlaunch.Step(&input);
    }
  }
}

}  // namespace
}  // namespace cohort::launcher

// The output of ranks and agents would disturb readers of libFuzzer's own lines.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static std::vector<char*> arguments(*argv, *argv + *argc);
  static char mask[] = "-close_fd_mask=3";
  arguments.push_back(mask);
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool kPrepared = [] {
    std::signal(SIGPIPE, SIG_IGN);
    return ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO) == STDIN_FILENO;
  }();
  cohort::FuzzCheck(kPrepared);
  cohort::launcher::Try(cohort::FuzzInput(data, size));
  return 0;
}
