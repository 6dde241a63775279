#include "cohort/trainer/parallel/replicate/parameter_usage.h"

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

ParameterUsage::ParameterUsage(size_t parameters, State state)
    : state_(state), users_(at::zeros({static_cast<int64_t>(parameters)}, at::kInt)), unused_(parameters, false) {}

ParameterUsage::~ParameterUsage() {
  const absl::Status ignored = work_.Wait();  // which writes into users_
  (void)ignored;
}

void ParameterUsage::Mark(int parameter) {
  if (counts()) users_.data_ptr<int32_t>()[parameter] = 1;
}

void ParameterUsage::Start(comm::Communicator& group) {
  if (!counts()) return;
  const comm::Buffer users = AsBuffer(users_);
  work_ = AllReduce(group, users, users, comm::ReduceOp::kSum);
}

void ParameterUsage::Finish() {
  if (!counts()) return;
  ThrowUnlessAllCame(work_.Wait(), "learning which parameters are used");
  work_ = runtime::Work();
  const int32_t* users = users_.data_ptr<int32_t>();
  for (size_t i = 0; i < unused_.size(); ++i) unused_[i] = users[i] == 0;
  users_.zero_();
  if (state_ == State::kOnce) state_ = State::kKnown;
}

}  // namespace cohort::trainer
