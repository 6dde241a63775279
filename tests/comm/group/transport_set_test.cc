// Which transports a process may use.
#include "cohort/comm/group/transport_set.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/segment/call_names.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;

absl::StatusOr<std::unique_ptr<Transport>> MakeNone(runtime::Runtime&, runtime::KeyValueStore&) {
  return absl::UnavailableError("its factory was asked");
}

std::string Always(runtime::Runtime&) { return ""; }
std::string Never(runtime::Runtime&) { return "it does not fit"; }

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

// "" or what Expected said of this process itself instead of `expected`. No transport of `entries` is made.
std::string Expect(const std::vector<TransportEntry>& entries, const std::string& allowed,
                   const std::string& expected) {
  const auto results = RunProcesses({.ranks = 1}, [&](ProcessRank& self) -> std::string {
    TransportSet set(*self.runtime, entries);
    const runtime::EngineLock lock(self.runtime->engine());
    const std::string found(set.Expected(0, allowed));
    if (found != expected) return "expected " + found;
    // One that could not be made is expected no more.
    (void)set.For(0, allowed);
    const std::string left(set.Expected(0, allowed));
    return left.empty() ? "" : "expected still " + left;
  });
  return results[0].text;
}

TEST(TransportSetTest, SaysWhichTransportIsExpectedWithoutMakingIt) {
  const std::vector<TransportEntry> entries = {{"remote", &MakeNone, &Always, Encryption::kWhereAsked},
                                               {"unfit", &MakeNone, &Never, Encryption::kNotNeeded},
                                               {"local", &MakeNone, &Always, Encryption::kNotNeeded}};
  EXPECT_EQ(Expect(entries, "", "local"), "");
  EXPECT_EQ(Expect(entries, "unfit", "unfit"), "");
  EXPECT_EQ(Expect(entries, "remote", ""), "");
  EXPECT_EQ(Expect(entries, "pigeon", ""), "");
}

TEST(TransportSetTest, TransportsOfThisBuildHaveNamesInBlackBoxes) {
  for (const TransportEntry& entry : RegisteredTransports()) {
    EXPECT_TRUE(runtime::IsKnownTransport(entry.name)) << entry.name;
  }
}

}  // namespace
}  // namespace cohort::comm
