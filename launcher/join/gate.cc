#include "cohort/launcher/join/gate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/launcher/join/early_notices.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/process/open_descriptors.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;

constexpr size_t kMaxStrangers = 256;
constexpr size_t kManyAtOnce = 8;  // strangers besides the nodes that are waited for
constexpr int kMaxUnproven = 64;   // carriers in a handshake: who has seen a knock can repeat it
constexpr std::chrono::seconds kStrangerLimit{5};
constexpr std::chrono::seconds kFarewell{1};      // for a node to hear why it is refused
constexpr std::chrono::milliseconds kPause{100};  // until descriptors are looked for again
constexpr size_t kMaxHello = 1u << 20;
constexpr char kHello[] = "cohort-join ";
constexpr char kRefusal = '\0';               // as an agent's message, an empty one, which is never the first
constexpr size_t kMaxRefusal = PIPE_BUF - 1;  // what a pipe takes whole, and a TLS record holds

// Someone who has not yet shown the knock.
struct Stranger {
  runtime::FileDescriptor socket;
  Deadline limit;
  size_t matched = 0;  // bytes of the knock
};

// Someone who has, behind a carrier of its own.
struct Guest {
  AgentProcess agent;
  std::string said;
  Deadline limit;
  std::optional<JoinHello> hello;
  bool heard = false;    // in this round
  bool refused = false;  // it may hear why until `limit`
};

// The carrier: child of a process with one thread, so that it may do anything.
[[noreturn]] void Carry(int socket, int input, int output, const JoinKey& key, std::chrono::milliseconds handshake,
                        pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::signal(SIGPIPE, SIG_IGN);
  // Whatever else is open here would keep others' pipes from ending.
  const int own[] = {::dup(socket), ::dup(input), ::dup(output)};
  const int low = 3;
  for (int i = 0; i < 3; ++i) ::dup2(own[i], low + i);
  runtime::CloseFrom(low + 3);
  absl::StatusOr<SecureStream> stream =
      SecureStream::Accept(runtime::FileDescriptor(low), key, Deadline::After(handshake));
  if (!stream.ok()) ::_exit(1);
  const absl::Status carried =
      stream->Pump(runtime::FileDescriptor(low + 1), runtime::FileDescriptor(low + 2), {.ends_with_peer = true});
  ::_exit(carried.ok() ? 0 : 1);
}

absl::StatusOr<Guest> StartCarrier(runtime::FileDescriptor socket, const JoinKey& key,
                                   std::chrono::milliseconds handshake) {
  Pipe input, output;
  if (!input.Open() || !output.Open())
    return WithRemedy(Remedy::kDescriptorLimit, absl::ResourceExhaustedError("no descriptors; raise ulimit -n"));
  for (const runtime::FileDescriptor* end : {&output.read_end, &output.write_end}) {
    ::fcntl(end->get(), F_SETFL, ::fcntl(end->get(), F_GETFL) | O_NONBLOCK);
  }
  Guest guest{.agent = {}, .said = "", .limit = Deadline::After(handshake), .hello = {}};
  guest.agent.input = std::move(input.write_end);
  guest.agent.output = std::move(output.read_end);
  const pid_t parent = ::getpid();
  guest.agent.pid = ::fork();
  if (guest.agent.pid == 0) Carry(socket.get(), input.read_end.get(), output.write_end.get(), key, handshake, parent);
  if (guest.agent.pid < 0)
    return WithRemedy(Remedy::kProcessLimit, absl::ResourceExhaustedError("no process; raise ulimit -u"));
  ::setpgid(guest.agent.pid, guest.agent.pid);
  return guest;
}

void Dismiss(const Guest& guest) {
  ::kill(guest.agent.pid, SIGKILL);
  ::waitpid(guest.agent.pid, nullptr, 0);
}

// Tells it why it can't be used.
void TurnAway(Guest* guest, const std::string& why, std::chrono::milliseconds farewell) {
  const std::string text = FormatJoinRefusal(why);
  const auto before = ::signal(SIGPIPE, SIG_IGN);  // its carrier may have gone
  (void)!::write(guest->agent.input.get(), text.data(), text.size());
  ::signal(SIGPIPE, before);
  guest->agent.input.Close();
  guest->refused = true;
  guest->limit = Deadline::After(farewell);
}

// Until it has heard why it was refused.
void AwaitEnd(const Guest& guest) {
  pollfd ended = {guest.agent.output.get(), 0, 0};
  ::poll(&ended, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(guest.limit.left()).count()));
}

// One Await.
class Reception {
 public:
  Reception(const Listener& listener, const JoinKey& key, const JoinGate::AwaitOptions& options)
      : listener_(listener), key_(key), knock_(KnockOf(key)), options_(options) {}
  ~Reception() {
    for (const Guest& guest : guests_) {
      if (guest.refused) AwaitEnd(guest);
      Dismiss(guest);
    }
  }

  absl::StatusOr<std::vector<JoinedNode>> Run() {
    while (unusable_.ok() && Complete() < options_.count) {
      if (options_.deadline.passed()) {
        if (options_.least && Complete() >= *options_.least) break;
        const std::string enough =
            options_.least ? ", and " + std::to_string(*options_.least + 1) + " are the least" : "";
        return absl::DeadlineExceededError(std::to_string(Complete() + 1) + " of " +
                                           std::to_string(options_.count + 1) + " nodes came in time" + enough);
      }
      Look();
      Remind();
      DropNotices();
    }
    COHORT_RETURN_IF_ERROR(unusable_);
    std::vector<JoinedNode> nodes;
    if (options_.indexed) {
      guests_.sort([](const Guest& a, const Guest& b) { return Place(a) < Place(b); });
    }
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      if (guest->hello && nodes.size() < static_cast<size_t>(options_.count)) {
        nodes.push_back({*std::move(guest->hello), std::move(guest->agent)});
        guest = guests_.erase(guest);
      } else {
        ++guest;
      }
    }
    const std::string enough = "the job starts without it, with " + std::to_string(nodes.size() + 1) + " nodes";
    for (Guest& guest : guests_) {
      if (!guest.refused) TurnAway(&guest, enough, options_.farewell);  // whether it is a node or a stranger
    }
    return nodes;
  }

 private:
  // Machines without a hello come last.
  static int Place(const Guest& guest) { return guest.hello ? guest.hello->index : kMaxNodes; }
  int Complete() const {
    return static_cast<int>(std::count_if(guests_.begin(), guests_.end(), [](const Guest& g) { return g.hello; }));
  }
  // Then strangers wait.
  bool FullOfUnproven() const { return static_cast<int>(guests_.size()) - Complete() >= kMaxUnproven; }

  void Look() {
    std::vector<pollfd> polled;
    const bool accepts = accept_again_.passed();
    for (const runtime::FileDescriptor& socket : listener_.sockets) {
      polled.push_back({accepts ? socket.get() : -1, POLLIN, 0});
    }
    const size_t first_stranger = polled.size();
    for (const Stranger& stranger : strangers_) {
      polled.push_back({FullOfUnproven() ? -1 : stranger.socket.get(), POLLIN, 0});
    }
    for (const Guest& guest : guests_) polled.push_back({guest.agent.output.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), 200) < 0) return;
    size_t at = first_stranger + strangers_.size();
    for (Guest& guest : guests_) guest.heard = polled[at++].revents != 0;  // before any come or go
    at = first_stranger;
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
      const bool heard = polled[at++].revents != 0;
      stranger =
          (heard && Greet(&*stranger)) || stranger->limit.passed() ? strangers_.erase(stranger) : std::next(stranger);
    }
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      const bool gone = guest->heard && !Listen(&*guest);
      const bool late = !guest->hello && guest->limit.passed();  // what has come is heard before
      if (gone || late) {
        Dismiss(*guest);
        guest = guests_.erase(guest);
      } else {
        ++guest;
      }
    }
    for (size_t i = 0; i < first_stranger; ++i) {
      if (polled[i].revents != 0) AcceptAll(polled[i].fd);
    }
  }

  // A user who looks after a while shall see that it waits, for whom, and for how long it still will.
  void Remind() {
    if (!reminder_.passed()) return;
    reminder_ = Deadline::After(options_.remind);
    const auto in_seconds = [](auto time) {
      return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
    };
    options_.say("waiting for " + in_seconds(Deadline::Clock::now() - since_) +
                 " by now: " + std::to_string(Complete() + 1) + " of " + std::to_string(options_.count + 1) +
                 " nodes are here, " + in_seconds(options_.deadline.left()) + " are left");
  }

  void AcceptAll(int listener) {
    for (size_t i = 0; i < max_strangers_; ++i) {  // then those that are here are looked at
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        if (strangers_.size() >= max_strangers_) strangers_.pop_front();
        strangers_.push_back({runtime::FileDescriptor(fd), Deadline::After(kStrangerLimit)});
      } else if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) {
        return;
      } else if (!HasWaiting(listener)) {
        return;  // the kernel looks for a descriptor first, and then whether somebody is there
      } else if (!strangers_.empty()) {
        strangers_.pop_front();
      } else {
        // The connection stays in the queue, and the listener ready: look again later, not in a circle.
        accept_again_ = Deadline::After(kPause);
        return;
      }
    }
  }

  // True when there is nothing more to hear from it here.
  bool Greet(Stranger* stranger) {
    if (FullOfUnproven()) return false;  // since this round began
    char bytes[kKnockBytes];
    // The rest of the knock and not a byte of what follows, which is the carrier's. Taken out, since a socket that
    // keeps the first of its bytes stays ready, and the next poll would not wait.
    const ssize_t n = ::recv(stranger->socket.get(), bytes, sizeof bytes - stranger->matched, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0 || std::memcmp(bytes, knock_.data() + stranger->matched, static_cast<size_t>(n)) != 0) return true;
    stranger->matched += static_cast<size_t>(n);
    if (stranger->matched < sizeof bytes) return false;
    absl::StatusOr<Guest> guest = StartCarrier(std::move(stranger->socket), key_, options_.handshake);
    if (guest.ok()) {
      guests_.push_back(*std::move(guest));
    } else {
      options_.say(TextOf(guest.status()));
    }
    return true;
  }

  // False when it is gone, or is no use.
  bool Listen(Guest* guest) {
    char buffer[16u << 10];
    const ssize_t n = ::read(guest->agent.output.get(), buffer, sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) {
      if (guest->hello) options_.say("host " + guest->hello->inventory.host() + " left");
      return false;
    }
    guest->said.append(buffer, static_cast<size_t>(n));
    // It has nothing to say before its start.
    if (guest->hello || guest->refused || guest->said.size() > kMaxHello) return false;
    if (std::count(guest->said.begin(), guest->said.end(), '\n') < 3) return true;
    absl::StatusOr<JoinHello> hello = ParseJoinHello(guest->said);
    if (!hello.ok()) return false;
    if (options_.indexed && (hello->index < 1 || hello->index > options_.count)) {
      options_.say("host " + hello->inventory.host() + " came as node " + std::to_string(hello->index) +
                   ", but there are " + std::to_string(options_.count + 1) +
                   "; are --nnodes and the number of pods the same?");
      return false;
    }
    if (const absl::Status usable = options_.check ? options_.check(hello->inventory) : absl::OkStatus();
        !usable.ok()) {
      LeaveOut(guest, Prefixed("host " + hello->inventory.host() + " ", usable));
      return true;
    }
    if (options_.indexed) {
      guests_.remove_if([&](const Guest& other) {
        const bool replaced = &other != guest && other.hello && other.hello->index == hello->index;
        if (replaced) Dismiss(other);
        return replaced;
      });
    }
    guest->hello = *std::move(hello);
    options_.say("host " + guest->hello->inventory.host() + " joined: " + std::to_string(Complete() + 1) + " of " +
                 std::to_string(options_.count + 1) + " nodes");
    return true;
  }

  // Others may come in its place, where this does not end the wait.
  void LeaveOut(Guest* guest, const absl::Status& why) {
    TurnAway(guest, TextOf(why), kFarewell);
    if (options_.least) {
      options_.say("left out: " + TextOf(why));
    } else {
      unusable_ = why;
    }
  }

  const Listener& listener_;
  const JoinKey& key_;
  const std::string knock_;
  const JoinGate::AwaitOptions& options_;
  const Deadline::Clock::time_point since_ = Deadline::Clock::now();
  const size_t max_strangers_ = PlacesForStrangers(kMaxStrangers, kManyAtOnce + static_cast<size_t>(options_.count));
  absl::Status unusable_;  // why the wait is over
  Deadline accept_again_ = Deadline::Now();
  Deadline reminder_ = Deadline::After(options_.remind);
  std::list<Stranger> strangers_;
  std::list<Guest> guests_;
};

}  // namespace

std::string FormatJoinHello(int index, const v1::NodeInventory& inventory) {
  return kHello + std::to_string(index) + "\n" + FormatInventory(inventory);
}

absl::StatusOr<JoinHello> ParseJoinHello(const std::string& text) {
  JoinHello hello;
  const size_t end = text.find('\n');
  if (!text.starts_with(kHello) || end == std::string::npos) return absl::InvalidArgumentError("no hello");
  const char* last = text.data() + end;
  const auto [stop, error] = std::from_chars(text.data() + sizeof kHello - 1, last, hello.index);
  if (error != std::errc() || stop != last) return absl::InvalidArgumentError("no index in the hello");
  const absl::StatusOr<v1::NodeInventory> inventory = ParseInventory(text.substr(end));
  if (!inventory.ok()) return absl::InvalidArgumentError(std::string(inventory.status().message()));
  hello.inventory = *inventory;
  return hello;
}

std::string FormatJoinRefusal(const std::string& why) { return kRefusal + why.substr(0, kMaxRefusal); }

std::optional<std::string> ParseJoinRefusal(const std::string& first) {
  if (!first.starts_with(kRefusal)) return std::nullopt;
  return first.substr(1);
}

absl::StatusOr<JoinGate> JoinGate::Open(const PortRange& ports, const std::vector<std::string>& hosts) {
  HoldNotices();
  std::string last_error;
  for (int port = ports.first; port <= ports.last; ++port) {
    absl::StatusOr<Listener> listener = ListenOn(hosts, port);
    if (listener.ok()) return JoinGate(*std::move(listener));
    last_error = std::string(listener.status().message());
  }
  const std::string range =
      std::to_string(ports.first) + (ports.first == ports.last ? "" : " to " + std::to_string(ports.last));
  return WithRemedy(Remedy::kGatePort, absl::UnavailableError("can't listen for other nodes on port " + range + " (" +
                                                              last_error + "); give others with --port-range"));
}

absl::StatusOr<std::vector<JoinedNode>> JoinGate::Await(const JoinKey& key, const AwaitOptions& options) {
  Reception reception(listener_, key, options);
  return reception.Run();
}

}  // namespace cohort::launcher
