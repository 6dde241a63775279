// The further network interfaces of this process: on each it listens, and from each it connects to the peers' interface
// of the same number. A handshake names the number among its terms, so none passes for a connection of another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/transport/tcp/dialer.h"
#include "cohort/comm/transport/tcp/entrance.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/socket/watch.h"
#include "cohort/comm/transport/tcp/wire.h"

namespace cohort::comm::tcp {

class RailPorts {
 public:
  // Numbers of watched sockets, as Entrance and Dialer take them. Those of rail r are higher by r << kShift.
  struct Tokens {
    uint64_t listener = 0;
    uint64_t accepted = 0;
    uint64_t dialed = 0;
  };
  static constexpr int kShift = 50;
  static uint64_t TokenOf(int rail, uint64_t token) { return token + (static_cast<uint64_t>(rail) << kShift); }
  static int RailOf(uint64_t token) { return static_cast<int>(token >> kShift & (kMostRails - 1)); }

  // `terms` and `watch` outlive it.
  RailPorts(const HandshakeTerms* terms, Watch* watch, const Tokens& tokens)
      : terms_(terms), watch_(watch), tokens_(tokens) {}

  // Listens on the interface of each of `ips`, which get the numbers from 1 on.
  absl::Status Open(const std::vector<std::string>& ips, const std::string& port_range, int buffer_bytes);
  bool empty() const { return ports_.empty(); }
  const std::vector<std::string>& addresses() const { return addresses_; }
  // "eth1 (10.1.0.1)".
  const std::string& NameOf(int rail) const { return At(rail).name; }

  void OnEvent(uint64_t token);
  // Begins to connect to `peer`, which is connected and has published `text`, over each rail that both sides have and
  // that is not there.
  void Dial(const Peer& peer, const std::string& text);
  void Stop(int rank);
  // Handshakes go on.
  bool busy() const;
  // Whether Poll would do anything that needs no event, as Entrance says.
  bool due() const;
  // Adds to the connection of the peer whose rank it is, if `find` knows one, a rail on which both sides are proved;
  // `added` is called. A rail that can't be connected is left out, and told once on stderr. Returns whether anything
  // moved.
  bool Poll(const std::function<Peer*(int rank)>& find, const std::function<void(Peer& peer)>& added);

 private:
  struct Port {
    Port(const HandshakeTerms& own, Watch* watch, const Tokens& tokens)
        : terms(own), entrance(&terms, watch, tokens.listener, tokens.accepted), dialer(&terms, watch, tokens.dialed) {}
    const HandshakeTerms terms;
    std::string name;
    Entrance entrance;
    Dialer dialer;
    bool told = false;
  };

  Port& At(int rail) { return *ports_[static_cast<size_t>(rail) - 1]; }
  const Port& At(int rail) const { return *ports_[static_cast<size_t>(rail) - 1]; }
  bool Add(int rail, Peer* peer, HandshakeSocket& socket);
  void Tell(Port& port, int rank, const absl::Status& status);

  const HandshakeTerms* const terms_;
  Watch* const watch_;
  const Tokens tokens_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::string> addresses_;
};

}  // namespace cohort::comm::tcp
