// The line by which a dlaunch that waits for other machines tells how they join, and a machine that can not.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>

#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/runtime/base/deadline.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {

// Waits for the line. Its token; empty when it does not come.
inline std::string TokenOf(DlaunchProcess* first) {
  const std::string line = "dlaunch join - <<< ";
  const auto printed = [&] {
    const size_t at = first->err().find(line);
    return at != std::string::npos && first->err().find('\n', at) != std::string::npos;
  };
  if (!first->WaitUntil(printed)) return "";
  const size_t at = first->err().find(line) + line.size();
  return first->err().substr(at, first->err().find('\n', at) - at);
}

// Offers a machine "relic", which has another version of dlaunch, to the first one at these addresses. Why it is
// refused, as it is told; "none" where it hears something else.
inline std::string OfferOldMachine(const std::string& addresses, const std::string& secret, int index = -1) {
  const runtime::Deadline deadline = runtime::Deadline::After(std::chrono::seconds(20));
  const JoinKey key = MakeJoinKey(secret);
  absl::StatusOr<Connection> connection = ConnectToFirst(addresses, deadline);
  while (!connection.ok() && !deadline.passed()) connection = ConnectToFirst(addresses, deadline);
  if (!connection.ok()) return std::string(connection.status().message());
  const std::string knock = KnockOf(key);
  (void)!::send(connection->socket.get(), knock.data(), knock.size(), MSG_NOSIGNAL);
  absl::StatusOr<SecureStream> stream = SecureStream::Connect(std::move(connection->socket), key, deadline);
  if (!stream.ok()) return std::string(stream.status().message());
  v1::NodeInventory inventory = TakeInventory();
  inventory.set_host("relic");
  inventory.set_version("0.0.1");
  if (!stream->Write(FormatJoinHello(index, inventory), deadline).ok()) return "it does not listen";
  const absl::StatusOr<std::string> first = stream->AwaitBytes();
  return first.ok() ? ParseJoinRefusal(*first).value_or("none") : std::string(first.status().message());
}

}  // namespace cohort::launcher
