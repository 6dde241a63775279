// An exception from a communication hook within autograd, at any place and of any type, is an error everywhere.
#include <chrono>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/comm_hook.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

struct Fault {
  const char* name;
  void (*thrower)();
  std::string text;  // that all ranks see
  bool in_wait;
  bool last_bucket;
};

// Averages, but on the last rank throws at its place, once.
class FailingHook : public CommHook {
 public:
  explicit FailingHook(const Fault& fault) : fault_(fault) {}
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override {
    const bool here = world->rank() == world->size() - 1 && bucket.is_last == fault_.last_bucket && thrown_ == 0;
    if (here && !fault_.in_wait) Throw();
    auto reduction = std::make_unique<Reduction>();
    if (here) reduction->hook = this;
    reduction->inner = average_.Start(group, bucket);
    return reduction;
  }
  int thrown() const { return thrown_; }

 private:
  struct Reduction : GradReduction {
    void Wait() override {
      if (hook != nullptr) hook->Throw();
      inner->Wait();
    }
    FailingHook* hook = nullptr;
    std::unique_ptr<GradReduction> inner;
  };
  void Throw() {
    ++thrown_;
    fault_.thrower();
  }
  Fault fault_;
  AllReduceHook average_;
  int thrown_ = 0;
};

std::vector<Fault> Faults() {
  struct Type {
    const char* name;
    void (*thrower)();
    const char* text;
  };
  const Type types[] = {
      {"RuntimeError", [] { throw std::runtime_error("this hook is tired"); }, "this hook is tired"},
      {"BadAlloc", [] { throw std::bad_alloc(); }, "bad_alloc"},
      {"C10Error", [] { TORCH_CHECK(false, "this hook is tired"); }, "this hook is tired"},
      {"Number", [] { throw 42; }, "no std::exception"},
  };
  std::vector<Fault> faults;
  for (const Type& type : types) {
    for (const bool in_wait : {false, true}) {
      for (const bool last : {false, true}) faults.push_back({type.name, type.thrower, type.text, in_wait, last});
    }
  }
  return faults;
}

class HookErrors : public testing::TestWithParam<Fault> {};

TEST_P(HookErrors, ErrorsOfHooksReachAllRanksWithTheirText) {
  const Fault& fault = GetParam();
  auto model = std::make_shared<Net>(16);
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 70};
  options.broadcast_buffers = false;
  DistributedDataParallel<Net> ddp(model, *world, options);
  auto hook = std::make_shared<FailingHook>(fault);
  ddp.register_comm_hook(hook);
  ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank that is still wrapping
  const auto start = steady_clock::now();
  int steps = 0;
  try {
    // A rank that has all it needs of the step in which another fails gets the error in the next.
    for (; steps < 2; ++steps) ddp.forward(InputOf(world->rank(), steps)).pow(2).mean().backward();
    FAIL() << "rank " << world->rank() << " noticed nothing";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr(fault.text));
    const bool here = world->rank() == world->size() - 1;
    EXPECT_EQ(dynamic_cast<const DistributedError*>(&error) != nullptr, !here || std::string(fault.name) != "C10Error");
    EXPECT_EQ(hook->thrown(), here ? 1 : 0);
    if (here) {
      EXPECT_EQ(steps, 0);
    }
  }
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(30));
}
INSTANTIATE_TEST_SUITE_P(CommHooks, HookErrors, testing::ValuesIn(Faults()), [](const auto& fault) {
  return std::string(fault.param.name) + (fault.param.in_wait ? "InWait" : "InStart") +
         (fault.param.last_bucket ? "OfTheLastBucket" : "OfTheFirstBucket");
});

}  // namespace
}  // namespace cohort::trainer
