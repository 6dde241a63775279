#include "cohort/trainer/parallel/replicate/powersgd_hook.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

struct PowerSGDHook::Memory {
  at::Tensor error;           // as the bucket's buffer
  std::vector<at::Tensor> q;  // of each compressed matrix
};

namespace {

// Orthogonalises the columns in place, by Gram-Schmidt.
void Orthogonalize(at::Tensor& matrix, double epsilon) {
  const int64_t columns = matrix.size(1);
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrix.select(1, i);
    const at::Tensor norm = column.norm();
    // A zero column (a gradient that is zero everywhere) stays zero instead of becoming NaN.
    column.div_(epsilon > 0 ? norm + epsilon : norm.clamp_min(1e-30));
    if (i + 1 < columns) {
      at::Tensor rest = matrix.narrow(1, i + 1, columns - i - 1);
      rest.sub_(column.unsqueeze(1) * at::mv(rest.t(), column).unsqueeze(0));
    }
  }
}

std::vector<at::Tensor> Split(const at::Tensor& flat, const std::vector<std::pair<int64_t, int64_t>>& shapes) {
  std::vector<at::Tensor> parts;
  int64_t offset = 0;
  for (const auto& [rows, columns] : shapes) {
    parts.push_back(flat.narrow(0, offset, rows * columns).view({rows, columns}));
    offset += rows * columns;
  }
  return parts;
}

}  // namespace

class PowerSGDHook::Reduction : public GradReduction {
 public:
  Reduction(comm::Communicator& group, const GradBucket& bucket, const PowerSGDState& options, Memory& memory)
      : group_(group), bucket_(bucket), options_(options), memory_(memory) {
    const at::NoGradGuard no_grad;
    if (options.use_error_feedback) {
      if (!memory.error.defined() || memory.error.numel() != bucket_.buffer.numel()) {
        memory.error = at::zeros_like(bucket_.buffer);
      }
      bucket_.buffer.add_(memory.error);
      memory.error.copy_(bucket_.buffer);
    }
    Sort();
    const at::TensorOptions flat = bucket_.buffer.options();
    whole_flat_ = at::empty({whole_elements_}, flat);
    p_flat_ = at::empty({p_elements_}, flat);
    q_flat_ = at::empty({q_elements_}, flat);
    p_ = Split(p_flat_, p_shapes_);
    q_ = Split(q_flat_, q_shapes_);
    PackWhole();
    StartQ();
    for (size_t i = 0; i < matrices_.size(); ++i) at::mm_out(p_[i], matrices_[i], q_[i]);
    whole_work_ = AllReduce(whole_flat_);
    p_work_ = AllReduce(p_flat_);
  }
  ~Reduction() override {
    for (runtime::Work* work : {&whole_work_, &p_work_, &q_work_}) {
      const absl::Status ignored = work->Wait();
      (void)ignored;
    }
  }

  void Wait() override {
    const at::NoGradGuard no_grad;
    const std::string what = "averaging gradient bucket " + std::to_string(bucket_.index) + " by PowerSGD";
    ThrowUnlessOk(whole_work_.Wait(), what);
    ThrowUnlessOk(p_work_.Wait(), what);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      Orthogonalize(p_[i], options_.orthogonalization_epsilon);
      at::mm_out(q_[i], matrices_[i].t(), p_[i]);
    }
    q_work_ = AllReduce(q_flat_);
    ThrowUnlessOk(q_work_.Wait(), what);
    q_flat_.div_(group_.size());
    whole_flat_.div_(group_.size());
    int64_t offset = 0;
    for (at::Tensor& gradient : whole_) {
      gradient.copy_(whole_flat_.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
      offset += gradient.numel();
    }
    for (size_t i = 0; i < matrices_.size(); ++i) at::mm_out(matrices_[i], p_[i], q_[i].t());
    // A gradient that travels whole loses nothing. Its error is zero, not the difference between it and the average.
    if (options_.use_error_feedback) FeedBack();
    if (options_.warm_start) memory_.q.assign(q_.begin(), q_.end());
  }

 private:
  void Sort() {
    int64_t offset = 0;
    for (const at::Tensor& gradient : bucket_.gradients) {
      const int64_t rows = gradient.dim() >= 2 ? gradient.size(0) : 1;
      const int64_t columns = rows == 0 ? 0 : gradient.numel() / rows;
      const int64_t rank = std::min({options_.matrix_approximation_rank, rows, columns});
      const bool compress = gradient.dim() >= 2 && static_cast<double>(rows + columns) * static_cast<double>(rank) *
                                                           options_.min_compression_rate <
                                                       static_cast<double>(rows * columns);
      if (compress) {
        matrices_.push_back(gradient.view({rows, columns}));
        matrix_offsets_.push_back(offset);
        p_shapes_.push_back({rows, rank});
        q_shapes_.push_back({columns, rank});
        p_elements_ += rows * rank;
        q_elements_ += columns * rank;
      } else {
        whole_.push_back(gradient);
        whole_elements_ += gradient.numel();
      }
      offset += gradient.numel();
    }
  }
  void PackWhole() {
    int64_t offset = 0;
    for (const at::Tensor& gradient : whole_) {
      whole_flat_.narrow(0, offset, gradient.numel()).copy_(gradient.reshape({-1}));
      offset += gradient.numel();
    }
  }
  void StartQ() {
    const bool warm = options_.warm_start && memory_.q.size() == q_.size();
    for (size_t i = 0; i < q_.size(); ++i) {
      if (warm && memory_.q[i].sizes() == q_[i].sizes()) {
        q_[i].copy_(memory_.q[i]);
      } else {
        const uint64_t seed = options_.random_seed + static_cast<uint64_t>(bucket_.index) * 7919 + i;
        q_[i].copy_(at::randn(q_[i].sizes(), at::detail::createCPUGenerator(seed)));
      }
      Orthogonalize(q_[i], options_.orthogonalization_epsilon);
    }
  }
  void FeedBack() {
    at::Tensor lost = at::zeros_like(memory_.error);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const int64_t elements = matrices_[i].numel();
      const int64_t offset = matrix_offsets_[i];
      lost.narrow(0, offset, elements).copy_(memory_.error.narrow(0, offset, elements) - matrices_[i].reshape({-1}));
    }
    memory_.error = lost;
  }
  runtime::Work AllReduce(at::Tensor& tensor) {
    const comm::Buffer buffer = AsBuffer(tensor);
    return trainer::AllReduce(group_, buffer, buffer, comm::ReduceOp::kSum, bucket_.tag);
  }

  comm::Communicator& group_;
  GradBucket bucket_;
  const PowerSGDState& options_;
  Memory& memory_;
  std::vector<at::Tensor> whole_, matrices_, p_, q_;
  std::vector<int64_t> matrix_offsets_;
  std::vector<std::pair<int64_t, int64_t>> p_shapes_, q_shapes_;
  int64_t whole_elements_ = 0, p_elements_ = 0, q_elements_ = 0;
  at::Tensor whole_flat_, p_flat_, q_flat_;
  runtime::Work whole_work_, p_work_, q_work_;
};

PowerSGDHook::PowerSGDHook(PowerSGDState options) : options_(options) {
  TORCH_CHECK(options.matrix_approximation_rank >= 1, "PowerSGDState: matrix_approximation_rank must be at least 1");
  // A rebuild of the buckets follows the first backward pass; state kept by bucket would not fit the new ones.
  TORCH_CHECK(options.start_powerSGD_iter >= 2 || (!options.use_error_feedback && !options.warm_start),
              "PowerSGDState: start_powerSGD_iter must be at least 2 with error feedback or warm start, because "
              "buckets are rebuilt after the first step");
}

PowerSGDHook::~PowerSGDHook() = default;

std::unique_ptr<GradReduction> PowerSGDHook::Start(comm::Communicator& group, const GradBucket& bucket) {
  const int64_t iteration = iteration_;
  if (bucket.is_last) ++iteration_;
  if (iteration < options_.start_powerSGD_iter || !at::isFloatingType(bucket.buffer.scalar_type())) {
    return whole_.Start(group, bucket);
  }
  std::unique_ptr<Memory>& memory = memory_[bucket.index];
  if (memory == nullptr) memory = std::make_unique<Memory>();
  return std::make_unique<Reduction>(group, bucket, options_, *memory);
}

}  // namespace cohort::trainer
