// The ledger by axis of the mesh: the bytes of a step are exactly those of each axis's formula.
#include <map>

#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/placement/row_chunks.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/parallelize/mesh_model.h"

namespace cohort::trainer {
namespace {

using comm::CollectiveKind;
using Bytes = std::map<std::pair<std::string, CollectiveKind>, int64_t>;

constexpr int64_t kFloat = 4, kBlocks = 2;

int64_t SizeOn(const DeviceMesh& mesh, const char* axis) { return mesh.has(axis) ? mesh.size(axis).value() : 1; }

// Blocks have two column and two row layers. The head is a column layer, the embedding sums as a row layer does.
void AddTensorAxis(Bytes& bytes, int64_t rows, bool sequence_parallel) {
  const int64_t activation = rows * kPlaces * kWidth * kFloat;
  int64_t& reduced = bytes[{kTensorAxis, CollectiveKind::kAllReduce}];
  reduced += 3 * rows * kPlaces * kFloat;  // the loss: largest logits, then the target's and sums of exponentials
  if (!sequence_parallel) {
    reduced += (kBlocks * 4 + 2) * activation;  // rows in forward, columns in backward
    return;
  }
  // Columns gather in forward, and again in backward; rows gather their gradients.
  bytes[{kTensorAxis, CollectiveKind::kAllGather}] += (kBlocks * 6 + 3) * activation;
  bytes[{kTensorAxis, CollectiveKind::kReduceScatter}] += (kBlocks * 4 + 2) * activation;
  reduced += (kBlocks * 6 + 2) * kWidth * kFloat;  // gradients of norms and of the row layers' biases
}

// The bytes of the parameters here, each padded to equal rows on `shards` ranks: those of blocks and all others.
std::pair<int64_t, int64_t> PaddedBytes(const torch::nn::Module& module, int64_t shards) {
  int64_t blocks = 0, others = 0;
  for (const auto& item : module.named_parameters()) {
    const std::shared_ptr<const Placement> placement = Placements().OrWhole(item.value());
    std::vector<int64_t> sizes = placement->sizes();
    for (const Axis& axis : placement->axes()) {  // as the tensor axis has cut it, which FSDP found
      if (axis.name != kTensorAxis || placement->use(axis.name) != AxisUse::kSplit) continue;
      Placement whole(placement->sizes());
      sizes = item.value().sizes().vec();
      if (placement->mentions(kShardAxis)) {
        int64_t first = 0;  // rows of all shards together
        for (int rank = 0; rank < shards; ++rank) first += placement->local_sizes({{kShardAxis, rank}})[0];
        sizes[0] = first;
      }
    }
    const int64_t bytes = RowChunkNumel(sizes, static_cast<int>(shards)) * shards * kFloat;
    (item.key().find("block") == std::string::npos ? others : blocks) += bytes;
  }
  return {blocks, others};
}

void AddDataAxes(Bytes& bytes, const DeviceMesh& mesh, const torch::nn::Module& module) {
  const int64_t shards = SizeOn(mesh, kShardAxis);
  const auto [blocks, others] = PaddedBytes(module, shards);
  if (shards > 1) {  // the outermost unit stays gathered from forward to backward
    bytes[{kShardAxis, CollectiveKind::kAllGather}] += 2 * blocks + others;
    bytes[{kShardAxis, CollectiveKind::kReduceScatter}] += blocks + others;
  }
  if (SizeOn(mesh, kReplicateAxis) > 1) {
    bytes[{kReplicateAxis, CollectiveKind::kAllReduce}] += (blocks + others) / shards;
  }
}

TEST(MeshLedger, BytesOfEachAxisAreThoseOfItsFormula) {
  for (const std::string& text : AllMeshes()) {
    for (const bool sequence_parallel : {false, true}) {
      const auto mesh = init_device_mesh(*world, text);
      const int64_t tensor = SizeOn(*mesh, kTensorAxis);
      if (sequence_parallel && tensor == 1) continue;
      MeshOptions options;
      options.sequence_parallel = sequence_parallel;
      MeshModel model(mesh.get(), options);
      torch::optim::SGD optimizer(model.module().parameters(), 0.1);
      for (int step = 0; step < 2; ++step) model.Step(optimizer, step);  // buckets settle
      Bytes sent;
      {
        const CommunicationLedger ledger;
        model.Step(optimizer, 2);
        for (const auto& [key, entry] : ledger.by_axis(*mesh)) {
          if (!key.first.empty() && entry.bytes > 0) sent[key] = entry.bytes;
        }
      }
      Bytes expected;
      const int64_t shards = SizeOn(*mesh, kShardAxis);
      if (tensor > 1) {
        AddTensorAxis(expected, kBatchRows / (world->size() / tensor), sequence_parallel);
      }
      AddDataAxes(expected, *mesh, model.module());
      std::string norm;  // three numbers, once over all axes of the model
      if (shards > 1) norm = kShardAxis;
      if (tensor > 1) norm += (norm.empty() ? "" : " x ") + std::string(kTensorAxis);
      if (!norm.empty()) expected[{norm, CollectiveKind::kAllReduce}] += 3 * 8;
      EXPECT_EQ(sent, expected) << text << (sequence_parallel ? " with parts of the sequence" : "");
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
