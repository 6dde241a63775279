// Which transports a process may use.
#include "cohort/comm/group/transport_set.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/runtime/engine/engine.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;

absl::StatusOr<std::unique_ptr<Transport>> MakeNone(runtime::Runtime&, runtime::KeyValueStore&) {
  return absl::UnavailableError("its factory was asked");
}

std::string Always(runtime::Runtime&) { return ""; }

// "" or why the only transport, whose factory asks nothing, was not found as `expected` says.
std::string Find(const char* encrypt_data, Encryption encryption, const std::string& allowed,
                 const std::string& expected) {
  const auto results = RunProcesses({.ranks = 1}, [&](ProcessRank& self) -> std::string {
    setenv("COHORT_ENCRYPT_DATA", encrypt_data, 1);
    const std::vector<TransportEntry> entries = {{"wire", &MakeNone, &Always, encryption}};
    TransportSet set(*self.runtime, entries);
    const runtime::EngineLock lock(self.runtime->engine());
    const std::string found(set.For(0, allowed).status().message());
    return found.find(expected) == std::string::npos ? found : "";
  });
  return results[0].text;
}

TEST(TransportSetTest, RefusesATransportThatDoesNotEncryptWhereDataMustBeEncrypted) {
  for (const char* allowed : {"", "wire"}) {
    SCOPED_TRACE(allowed);
    EXPECT_EQ(Find("1", Encryption::kUnavailable, allowed, "does not encrypt, as --encrypt-data"), "");
    EXPECT_EQ(Find("0", Encryption::kUnavailable, allowed, "its factory was asked"), "");
    EXPECT_EQ(Find("1", Encryption::kWhereAsked, allowed, "its factory was asked"), "");
    EXPECT_EQ(Find("1", Encryption::kNotNeeded, allowed, "its factory was asked"), "");
  }
}

}  // namespace
}  // namespace cohort::comm
