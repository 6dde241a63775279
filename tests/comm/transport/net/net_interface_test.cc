// Interfaces are found by their addresses, and RDMA devices behind them.
#include "cohort/comm/transport/net/net_interface.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace cohort::comm::net {
namespace {

TEST(NetInterface, InterfacesAreFoundByAddress) {
  EXPECT_EQ(*InterfaceOf("127.0.0.1"), "lo");
  EXPECT_TRUE(absl::IsInvalidArgument(InterfaceOf("not an address").status()));
  const auto absent = InterfaceOf("192.0.2.77");  // reserved for documentation
  EXPECT_TRUE(absl::IsNotFound(absent.status()));
  for (const char* part : {"127.0.0.1", "192.0.2.77", "COHORT_DATA_ADDRESS"}) {
    EXPECT_NE(std::string(absent.status().message()).find(part), std::string::npos) << absent.status();
  }
}

TEST(NetInterface, RdmaDevicesBehindAnInterfaceAreFound) {
  const std::filesystem::path sysfs =
      std::filesystem::temp_directory_path() / ("cohort-sysfs-" + std::to_string(getpid()));
  std::filesystem::create_directories(sysfs / "class/net/eth3/device/infiniband/mlx5_0");
  std::filesystem::create_directories(sysfs / "class/net/eth4/device");
  std::ofstream(sysfs / "class/net/eth3/dev_port") << "1\n";
  EXPECT_EQ(RdmaDevicesOf("eth3", sysfs.string()), std::vector<std::string>({"mlx5_0:2"}));
  EXPECT_TRUE(RdmaDevicesOf("eth4", sysfs.string()).empty());
  EXPECT_TRUE(RdmaDevicesOf("eth5", sysfs.string()).empty());
  EXPECT_TRUE(RdmaDevicesOf("lo").empty());
  std::filesystem::remove_all(sysfs);
}

}  // namespace
}  // namespace cohort::comm::net
