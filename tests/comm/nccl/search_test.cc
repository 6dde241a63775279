// --check nan on CUDA memory, over the fake NCCL: inputs are searched by a kernel on their stream.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

class NcclSearchTest : public ::testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
  void TearDown() override {
    TheFake().Find<decltype(&FakeCudaTakeKernels)>("FakeCudaTakeKernels")(true);
    EXPECT_EQ(TheFake().live_allocations(), 0);
  }
};

CollectiveRequest Sum(std::vector<float>& values) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllReduce;
  request.dtype = DataType::kFloat32;
  request.in = request.out = values.data();
  request.count = static_cast<int64_t>(values.size());
  request.in_place = true;
  return request;
}

TEST_F(NcclSearchTest, InputsAreSearchedForNaNBeforeTheyAreSent) {
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    self.SetChecks({.nan = true});
    std::vector<float> in(3000, 1), out(6000);
    CollectiveRequest request;
    request.kind = CollectiveKind::kAllGather;
    request.dtype = DataType::kFloat32;
    request.in = in.data();
    request.out = out.data();
    request.count = 3000;
    for (int step = 0; step < 2; ++step) {
      if (const absl::Status right = self.Run(request); !right.ok()) return "a right call: " + right.ToString();
    }
    if (out != std::vector<float>(6000, 1)) return "all_gather gave wrong values";
    if (self.rank() == 1) in[2041] = in[2995] = std::numeric_limits<float>::quiet_NaN();
    const absl::Status status = self.Run(request, std::chrono::milliseconds(500));
    const std::string text(status.message());
    if (self.rank() == 0) return status.ok() ? "rank 1 took part" : "";  // nothing tells it here
    return absl::IsDataLoss(status) && text.find("rank 1's input of all_gather(") == 0 &&
                   text.find(" holds NaN at element 2041 (2 NaN, 0 inf)") != std::string::npos
               ? ""
               : status.ToString();
  }));
}

TEST_F(NcclSearchTest, ASearchThatGetsNoMemoryKeepsNone) {
  ExpectNoProblem(RunNcclRanks(1, [](NcclRank& self) -> std::string {
    self.SetChecks({.nan = true});
    std::vector<float> values(4, 1);
    TheFake().Find<decltype(&FakeCudaRefuseAllocation)>("FakeCudaRefuseAllocation")(2);
    return self.Run(Sum(values)).ok() ? "the second allocation was not needed" : "";
  }));
}

TEST_F(NcclSearchTest, ACallThatCannotBeSearchedIsRefusedAndTheGroupGoesOn) {
  TheFake().Find<decltype(&FakeCudaTakeKernels)>("FakeCudaTakeKernels")(false);
  ExpectNoProblem(RunNcclRanks(2, [](NcclRank& self) -> std::string {
    self.SetChecks({.nan = true});
    std::vector<float> values(4, 1);
    const absl::Status refused = self.Run(Sum(values));
    if (!absl::IsUnimplemented(refused)) return "not refused: " + refused.ToString();
    if (std::string(refused.message()).find("--check nan needs Cohort's kernels") == std::string::npos) {
      return refused.ToString();
    }
    CollectiveRequest integers = Sum(values);
    integers.dtype = DataType::kInt32;
    if (const absl::Status status = self.Run(integers); !status.ok()) return "afterwards: " + status.ToString();
    return self.failure().ok() ? "" : self.failure().ToString();
  }));
}

TEST_F(NcclSearchTest, AFirstSearchLeavesTheCaptureOfAnotherStreamAlone) {
  ExpectNoProblem(RunNcclRanks(1, [](NcclRank& self) -> std::string {
    self.SetChecks({.nan = true});
    std::vector<float> values(4, 1);
    FakeStream other;
    other.BeginCapture();
    const absl::Status status = self.Run(Sum(values));
    (void)other.EndCapture();
    return status.ok() ? "" : status.ToString();
  }));
}

}  // namespace
}  // namespace cohort::comm
