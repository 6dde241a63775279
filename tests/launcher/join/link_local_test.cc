// Addresses of IPv6 that mean something only together with an interface.
#include <gtest/gtest.h>
#include <net/if.h>

#include <string>
#include <vector>

#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::string;
using std::chrono::seconds;

absl::Status Dial(const string& address) { return ConnectToFirst(address, Deadline::After(seconds(1))).status(); }

TEST(LinkLocal, ALinkLocalAddressNeedsAnInterfaceThatExists) {
  const absl::Status bare = Dial("[fe80::1]:4711");
  EXPECT_EQ(bare.code(), absl::StatusCode::kInvalidArgument) << bare;
  EXPECT_NE(bare.message().find("[fe80::1%eth0]:4711"), string::npos) << bare;
  const absl::Status unknown = Dial("[fe80::1%nowhere0]:4711");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument) << unknown;
  EXPECT_NE(unknown.message().find("no interface nowhere0"), string::npos) << unknown;
  for (const char* text : {"[fe80::1%]:4711", "10.0.0.1%lo:4711", "[%lo]:4711", "%:1"}) {
    EXPECT_EQ(Dial(text).code(), absl::StatusCode::kInvalidArgument) << text;
  }
  // Nobody is there, but it is an address.
  EXPECT_EQ(Dial("[fe80::1%lo]:1").code(), absl::StatusCode::kUnavailable) << Dial("[fe80::1%lo]:1");
}

// A pod whose name has such an address beside another is reached at the other.
TEST(LinkLocal, AnUnscopedAddressIsLeftOutWhereThereIsAnother) {
  using Addresses = std::vector<string>;
  EXPECT_EQ(WithoutUnscoped({"fe80::1", "10.0.0.1", "fe80::2%eth0", "fd00::1", "febf::1"}),
            (Addresses{"10.0.0.1", "fe80::2%eth0", "fd00::1"}));
  EXPECT_EQ(WithoutUnscoped({"fe80::1"}), Addresses{"fe80::1"}) << "the cause is then told";
  EXPECT_EQ(WithoutUnscoped({}), Addresses{});
}

TEST(LinkLocal, ALinkLocalAddressMayBeAHostOfAList) {
  const auto hosts = ParseHostList("fe80::1%eth0,[fe80::2%ens-3.7]:4", "--hosts");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->size(), 2u);
  EXPECT_EQ(hosts->at(0).host, "fe80::1%eth0");
  EXPECT_FALSE(hosts->at(0).slots);
  EXPECT_EQ(hosts->at(1).host, "fe80::2%ens-3.7");
  EXPECT_EQ(hosts->at(1).slots, 4);
  for (const char* text : {"fe80::1%", "fe80::1%a;b", "fe80::1%a%b", "fe80::1%a:b", "a%b"}) {
    EXPECT_EQ(ParseHostList(text, "--hosts").status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(LinkLocal, LinkLocalAddressesAreNeverGivenToOthers) {
  struct if_nameindex* const all = ::if_nameindex();
  ASSERT_NE(all, nullptr);
  for (const struct if_nameindex* one = all; one->if_index != 0; ++one) {
    for (const string& address : OwnAddresses(one->if_name)) {
      EXPECT_FALSE(address.starts_with("fe80")) << address << " of " << one->if_name;
    }
  }
  ::if_freenameindex(all);
}

}  // namespace
}  // namespace cohort::launcher
