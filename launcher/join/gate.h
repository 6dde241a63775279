// Lets nodes come to a job by themselves: the first machine listens, the others dial it (dlaunch join, pods). Each one
// that proves to have the key gets a child process here that carries its agent's messages, so that the rest of dlaunch
// sees an agent like any other: a process with an input and an output.
//
//   dlaunch ──pipes──► carrier (fork) ──TLS 1.3, pre-shared key──► dlaunch join ──pipes──► agent
//
// A connection that does not begin with the key's knock gets at most its 16 bytes, five seconds and one of 256 places.
// There are fewer places where this process may have few files; the oldest connection goes when another comes. A
// connection with the knock, but without the key, gets nothing but ten seconds and one of 64 carriers.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/net/listener.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/spawn/spawner.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The first words of a node: "cohort-join 3" and its inventory. -1: any place is right.
std::string FormatJoinHello(int index, const v1::NodeInventory& inventory);
struct JoinHello {
  int index = -1;
  v1::NodeInventory inventory;
};
// kInvalidArgument: it is none. Pure.
absl::StatusOr<JoinHello> ParseJoinHello(const std::string& text);

// The answer to a node that can't be used, in place of its agent's first message: short enough to come in one piece.
std::string FormatJoinRefusal(const std::string& why);
// Why, where the first that a node is told is that; nothing where it is an agent's message. Pure.
std::optional<std::string> ParseJoinRefusal(const std::string& first);

struct JoinedNode {
  JoinHello hello;
  AgentProcess agent;
};

class JoinGate {
 public:
  // Listens on the first free port of `ports`, on these numeric addresses, or on all where there are none. kUnavailable
  // names the port and the reason. From then on notices of a preemption are held, and do not end the wait
  // (early_notices.h).
  static absl::StatusOr<JoinGate> Open(const PortRange& ports, const std::vector<std::string>& hosts = {});
  int port() const { return listener_.port; }

  struct AwaitOptions {
    int count = 0;                  // how many nodes, without this one
    std::optional<int> least = {};  // how many are enough when the time is over; all unless set
    // Whether one that tells this can be used, else why not, to be read after its name; all can unless set. Where there
    // is a least number, one that can't is told so, named and left out, as if it had not come; else it ends the wait.
    std::function<absl::Status(const v1::NodeInventory& inventory)> check = {};
    bool indexed = false;  // they come with their places, 1 to count; a later one with the same replaces the earlier
    runtime::Deadline deadline = runtime::Deadline::After(std::chrono::seconds(0));
    std::function<void(const std::string& line)> say = {};           // what users should see
    std::chrono::milliseconds remind = std::chrono::seconds(30);     // how often it says for how long it waits
    std::chrono::milliseconds farewell{200};                         // for those too many to hear so, before it returns
    std::chrono::milliseconds handshake = std::chrono::seconds(10);  // for one with the knock to show the key
  };
  // Waits for all of them, or for the least number and the deadline; in the order of their places, or of coming. Those
  // that leave before all are there are waited for again. kDeadlineExceeded tells how many came; `check`'s error, of
  // which host. Call from the main thread, with no other in the process.
  absl::StatusOr<std::vector<JoinedNode>> Await(const JoinKey& key, const AwaitOptions& options);

 private:
  explicit JoinGate(Listener listener) : listener_(std::move(listener)) {}
  Listener listener_;
};

}  // namespace cohort::launcher
