// Every pair and triple of the axes replicate, shard and tensor that the ranks can be laid out as: each step's loss and
// gradient norm are those of one process.
#include <cmath>
#include <map>

#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "tests/trainer/parallelize/mesh_model.h"

namespace cohort::trainer {
namespace {

constexpr int kSteps = 3;

struct Trace {
  std::vector<std::pair<double, double>> steps;
  std::map<std::string, at::Tensor> parameters;  // those of this rank
};

Trace Train(DeviceMesh* mesh, const MeshOptions& options) {
  MeshModel model(mesh, options);
  torch::optim::SGD optimizer(model.module().parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
  Trace trace;
  for (int step = 0; step < kSteps; ++step) trace.steps.push_back(model.Step(optimizer, step));
  for (const auto& item : model.module().named_parameters()) {
    at::Tensor kept = item.value().detach().clone();
    Placements().Add(kept, *Placements().OrWhole(item.value()));
    trace.parameters[UnwrappedName(item.key())] = kept;
  }
  return trace;
}

void ExpectSameTraining(const Trace& actual, const Trace& expected, const std::string& what, double tolerance) {
  for (int step = 0; step < kSteps; ++step) {
    const auto& [loss, norm] = actual.steps[step];
    const auto& [expected_loss, expected_norm] = expected.steps[step];
    EXPECT_NEAR(loss, expected_loss, tolerance * std::max(1.0, expected_loss)) << what << ", step " << step;
    EXPECT_NEAR(norm, expected_norm, tolerance * std::max(1.0, expected_norm)) << what << ", step " << step;
  }
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size()) << what;
  for (const auto& [name, part] : actual.parameters) {
    const auto placement = Placements().OrWhole(part);
    at::Tensor own = torch::zeros(placement->local_sizes());
    TakeBoxes(expected.parameters.at(name), placement->boxes(), own);
    EXPECT_TRUE(torch::allclose(part, own, tolerance, tolerance))
        << what << ": " << name << " on rank " << world->rank() << " differs by "
        << (part - own).abs().max().item<double>();
  }
}

void ExpectEveryMeshTrainsAlike(const std::string& what, const MeshOptions& options, double tolerance,
                                const std::string& with = "") {
  const Trace expected = Train(nullptr, options);
  for (const std::string& text : AllMeshes()) {
    if (text.find(with) == std::string::npos) continue;
    const auto mesh = init_device_mesh(*world, text);
    ExpectSameTraining(Train(mesh.get(), options), expected, text + ", " + what, tolerance);
  }
}

TEST(MeshTraining, EveryMeshTrainsAsOneProcess) { ExpectEveryMeshTrainsAlike("plain", {}, 1e-4); }

TEST(MeshTraining, EveryMeshTrainsAsOneProcessWithDropoutClippingRecomputationAndAccumulation) {
  const MeshOptions options = {.dropout = 0.2, .clip = 0.3, .recomputation = true, .accumulated = 2};
  ExpectEveryMeshTrainsAlike("all options", options, 1e-4);
}

// Norms and biases see a part of the sequence: their gradients are summed over the axis (Megatron-LM#1446).
TEST(MeshTraining, EveryMeshTrainsAsOneProcessUnderSequenceParallelism) {
  const MeshOptions options = {.dropout = 0.2, .clip = 0.3, .accumulated = 2, .sequence_parallel = true};
  ExpectEveryMeshTrainsAlike("sequence parallel", options, 1e-4, "tensor");
}

// Sums round to 8 bits, in other places on each mesh.
TEST(MeshTraining, EveryMeshTrainsAsOneProcessInBfloat16ButForRounding) {
  const MeshOptions options = {.dropout = 0.2, .clip = 0.3, .accumulated = 2, .autocast = true};
  ExpectEveryMeshTrainsAlike("autocast", options, 2e-2);
}

TEST(MeshTraining, EveryMeshTrainsAsOneProcessWithShardsGatheredInBfloat16) {
  const MeshOptions options = {.clip = 0.3, .recomputation = true, .accumulated = 2, .param_dtype = at::kBFloat16};
  ExpectEveryMeshTrainsAlike("bfloat16 parameters", options, 2e-2, "shard");
}

}  // namespace
}  // namespace cohort::trainer
