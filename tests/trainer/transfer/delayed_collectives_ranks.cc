// Transfers that are held back show buffers that are used too early; what waits sees no difference.
#include <memory>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/transfer/collectives.h"
#include "tests/support/delayed_collectives.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

// A failure aborts the group it happens in.
std::unique_ptr<comm::Communicator> GroupOfItsOwn() {
  auto group = world->Duplicate();
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

TEST(DelayedCollectives, DelayedCollectivesGiveTheSameResults) {
  const auto group = GroupOfItsOwn();
  const int n = group->size(), me = group->rank();
  const DelayedCollectives delayed;
  at::Tensor sum = torch::full({5}, 1.0 + me), all = torch::zeros({2 * n}), part = torch::zeros({2});
  const at::Tensor mine = torch::full({2}, 1.0 * me), whole = torch::arange(2 * n).to(torch::kFloat32);
  at::Tensor told = torch::full({3}, 1.0 * me);
  all.narrow(0, 2 * me, 2).copy_(mine);  // in place
  std::vector<int64_t> counts(n, 2);
  at::Tensor parts = whole.clone();
  std::vector<runtime::Work> works;
  works.push_back(AllReduce(*group, AsBuffer(sum), AsBuffer(sum), comm::ReduceOp::kSum));
  works.push_back(AllGather(*group, AsBuffer(all.narrow(0, 2 * me, 2)), AsBuffer(all)));
  works.push_back(ReduceScatter(*group, AsBuffer(whole), AsBuffer(part), comm::ReduceOp::kSum));
  works.push_back(ReduceScatterV(*group, AsBuffer(parts), {.counts = counts, .displacements = {}},
                                 AsBuffer(parts.narrow(0, 2 * me, 2)), comm::ReduceOp::kSum));
  works.push_back(Broadcast(*group, AsBuffer(told), n - 1));
  at::Tensor ones = torch::zeros({n}), twos = torch::zeros({2 * n});  // two as one; the second in place
  const at::Tensor one = torch::full({1}, 3.0 * me);
  twos.narrow(0, 2 * me, 2).copy_(mine);
  works.push_back(AllGathers(*group, std::vector<CallBuffers>{{AsBuffer(one), AsBuffer(ones)},
                                                              {AsBuffer(twos.narrow(0, 2 * me, 2)), AsBuffer(twos)}}));
  EXPECT_TRUE(ones.isnan().all().item<bool>());
  EXPECT_TRUE(twos.isnan().all().item<bool>());
  EXPECT_TRUE(sum.isnan().all().item<bool>());
  EXPECT_TRUE(all.isnan().all().item<bool>());
  EXPECT_TRUE(part.isnan().all().item<bool>());
  EXPECT_EQ(told.isnan().all().item<bool>(), me != n - 1) << "the root only reads";
  EXPECT_FALSE(works.back().Done());
  for (auto work = works.rbegin(); work != works.rend(); ++work) EXPECT_TRUE(work->Wait().ok()) << work->Wait();
  EXPECT_TRUE(torch::equal(sum, torch::full({5}, n * (n + 1) / 2.0)));
  EXPECT_TRUE(torch::equal(all, torch::arange(n).to(torch::kFloat32).repeat_interleave(2)));
  EXPECT_TRUE(torch::equal(part, whole.narrow(0, 2 * me, 2) * n));
  EXPECT_TRUE(torch::equal(parts.narrow(0, 2 * me, 2), part));
  EXPECT_TRUE(torch::equal(told, torch::full({3}, n - 1.0)));
  EXPECT_TRUE(torch::equal(ones, torch::arange(n).to(torch::kFloat32) * 3));
  EXPECT_TRUE(torch::equal(twos, all));
  EXPECT_EQ(delayed.calls(), 7);
}

TEST(DelayedCollectives, CallsThatNobodyWaitsForAreStarted) {
  const auto group = GroupOfItsOwn();
  at::Tensor sum = torch::ones({4});
  runtime::Work work;
  {
    const DelayedCollectives delayed;
    work = AllReduce(*group, AsBuffer(sum), AsBuffer(sum), comm::ReduceOp::kSum);
  }
  EXPECT_TRUE(work.Wait().ok());
  EXPECT_TRUE(torch::equal(sum, torch::full({4}, 1.0 * group->size())));
}

TEST(DelayedCollectives, AnInputThatIsChangedTooEarlyIsFound) {
  const auto group = GroupOfItsOwn();
  const DelayedCollectives delayed;
  at::Tensor in = torch::ones({100}), out = torch::empty({100});
  runtime::Work work = AllReduce(*group, AsBuffer(in), AsBuffer(out), comm::ReduceOp::kSum);
  in[7] = 5;
  const absl::Status status = work.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the input of all_reduce at "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("delayed_collectives_ranks.cc"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("was changed (byte 30)"));  // of 1.0f and 5.0f the third differs
}

TEST(DelayedCollectives, AnOutputThatIsWrittenTooEarlyIsFound) {
  const auto group = GroupOfItsOwn();
  const DelayedCollectives delayed;
  const at::Tensor in = torch::ones({3});
  at::Tensor out = torch::empty({3 * group->size()});
  runtime::Work work = AllGather(*group, AsBuffer(in), AsBuffer(out));
  out.zero_();
  const absl::Status status = work.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the output of all_gather at "));
}

TEST(DelayedCollectives, EveryCallOfABatchIsChecked) {
  for (const bool output : {false, true}) {
    const auto group = GroupOfItsOwn();
    const DelayedCollectives delayed;
    const int n = group->size();
    at::Tensor first = torch::ones({3}), second = torch::ones({5});
    at::Tensor to_first = torch::empty({3 * n}), to_second = torch::empty({5 * n});
    runtime::Work work = AllGathers(*group, std::vector<CallBuffers>{{AsBuffer(first), AsBuffer(to_first)},
                                                                     {AsBuffer(second), AsBuffer(to_second)}});
    (output ? to_second : second)[0] = 5;
    const absl::Status status = work.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(output ? "the output of all_gather at " : "the input of all_gather at "));
  }
}

TEST(DelayedCollectives, DelayedCollectivesEndWithTheirGroup) {
  auto group = GroupOfItsOwn();
  const DelayedCollectives delayed;
  at::Tensor sum = torch::ones({4});
  runtime::Work work = AllReduce(*group, AsBuffer(sum), AsBuffer(sum), comm::ReduceOp::kSum);
  NoteGroupEnd(*group);
  group.reset();
  EXPECT_EQ(work.Wait().code(), absl::StatusCode::kCancelled);
}

// The two mistakes that a hook can make: its memory serves two buckets, or what comes back is used before it has.
class Careless : public CommHook {
 public:
  explicit Careless(bool one_buffer_for_all) : one_buffer_for_all_(one_buffer_for_all) {}
  // While the buckets' memory is still there.
  void Finish() {
    for (runtime::Work& work : works_) EXPECT_TRUE(work.Wait().ok());
  }
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override {
    at::Tensor carried = bucket.buffer;
    if (one_buffer_for_all_) {
      if (!staging_.defined()) staging_ = torch::empty({100});
      carried = staging_.narrow(0, 0, bucket.buffer.numel());
      carried.copy_(bucket.buffer);
    }
    runtime::Work work = AllReduce(group, AsBuffer(carried), AsBuffer(carried), comm::ReduceOp::kSum);
    if (!one_buffer_for_all_) works_.push_back(work);
    return std::make_unique<Reduction>(one_buffer_for_all_ ? work : runtime::Work(), carried, bucket.buffer);
  }

 private:
  class Reduction : public GradReduction {
   public:
    Reduction(runtime::Work work, at::Tensor carried, at::Tensor target)
        : work_(std::move(work)), carried_(std::move(carried)), target_(std::move(target)) {}
    void Wait() override {
      ThrowUnlessOk(work_.Wait(), "reducing a bucket carelessly");
      if (!carried_.is_same(target_)) target_.copy_(carried_);
    }

   private:
    runtime::Work work_;
    at::Tensor carried_, target_;
  };
  bool one_buffer_for_all_;
  at::Tensor staging_;
  std::vector<runtime::Work> works_;
};

DistributedDataParallelOptions BucketsOf100Bytes() {
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 100};
  return options;
}

TEST(DelayedCollectives, AHookThatReusesItsBufferTooEarlyIsFound) {
  const auto group = GroupOfItsOwn();
  const DelayedCollectives delayed;
  auto model = std::make_shared<Net>(7);
  DistributedDataParallel<Net> ddp(model, *group, BucketsOf100Bytes());
  ASSERT_GT(ddp.reducer().buckets().size(), 1u);
  ddp.register_comm_hook(std::make_shared<Careless>(/*one_buffer_for_all=*/true));
  const at::Tensor loss = ddp.forward(InputOf(world->rank())).pow(2).mean();
  try {
    loss.backward();
    FAIL() << "not found";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("used too early"));
  }
}

TEST(DelayedCollectives, AHookThatDoesNotWaitIsFound) {
  const auto group = GroupOfItsOwn();
  const DelayedCollectives delayed;
  auto model = std::make_shared<Net>(7);
  auto hook = std::make_shared<Careless>(/*one_buffer_for_all=*/false);
  DistributedDataParallel<Net> ddp(model, *group, BucketsOf100Bytes());
  ddp.register_comm_hook(hook);
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().isnan().all().item<bool>());
  hook->Finish();
}

}  // namespace
}  // namespace cohort::trainer
