// Checkpoints of boxes: written over one cut and read over another, each rank reading little more than it keeps.
#include <fstream>
#include <random>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/sharded_init.h"
#include "cohort/trainer/state/training_state.h"
#include "nlohmann/json.hpp"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

class BoxCheckpoints : public Checkpoints {};

at::Tensor Numbers(const std::vector<int64_t>& sizes) {
  return torch::arange(torch::zeros(sizes).numel(), torch::kFloat32).view(sizes);
}

// The boxes that a rank has of a whole, laid out as in its own tensor.
at::Tensor PartOfWhole(const at::Tensor& whole, const Placement& placement) {
  at::Tensor part = torch::full(placement.local_sizes(), -1.0);
  for (const Box& box : placement.boxes()) {
    at::Tensor to = part, from = whole;
    for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
      to = to.narrow(static_cast<int64_t>(dim), box.local[dim], box.sizes[dim]);
      from = from.narrow(static_cast<int64_t>(dim), box.offset[dim], box.sizes[dim]);
    }
    to.copy_(from);
  }
  return part;
}

CheckpointTensor TensorOf(const Placement& placement, const at::Tensor& data) {
  return {.name = "a", .sizes = placement.sizes(), .boxes = placement.boxes(), .data = data};
}

Axis Ranks() { return {.name = "tensor", .size = world->size(), .rank = world->rank()}; }

TEST_F(BoxCheckpoints, CheckpointsMoveBetweenCuts) {
  std::mt19937 random(11);  // alike on all ranks
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int trial = 0; trial < 25; ++trial) {
    std::vector<int64_t> sizes;
    for (int dims = pick(1, 4); dims > 0; --dims) sizes.push_back(pick(1, trial % 5 == 0 ? 40 : 9));
    const at::Tensor whole = Numbers(sizes);
    const auto cut = [&] {
      Placement placement(sizes);
      Cut how = {.dim = pick(0, static_cast<int>(sizes.size()) - 1)};
      const int64_t first = pick(0, static_cast<int>(sizes[how.dim]));
      if (pick(0, 1) == 0) how.blocks = {first, sizes[how.dim] - first};
      EXPECT_TRUE(placement.Split(Ranks(), how).ok());
      return placement;
    };
    const Placement from = cut(), to = cut();
    const std::string directory = At("trial-" + std::to_string(trial));
    SaveCheckpoint(*world, directory, {TensorOf(from, PartOfWhole(whole, from))}, {});
    const CheckpointIndex index = CheckpointIndex::Read(directory);
    at::Tensor loaded = torch::zeros(to.local_sizes());
    LoadTensors(directory, index, {TensorOf(to, loaded)});
    EXPECT_TRUE(torch::equal(loaded, PartOfWhole(whole, to))) << from.Describe() << " to " << to.Describe();
    at::Tensor all = torch::zeros(sizes);
    LoadTensors(directory, index, {ReplicatedTensor("a", all, *world)});
    EXPECT_TRUE(torch::equal(all, whole)) << from.Describe();
  }
}

TEST_F(BoxCheckpoints, RanksReadLittleMoreThanTheyKeep) {
  const std::vector<std::vector<int64_t>> all = {{256, 256}, {250, 334}, {1536, 1536}};
  for (const std::vector<int64_t>& sizes : all) {
    const at::Tensor whole = Numbers(sizes);
    for (const int from : {-1, 0, 1}) {  // the dimension that writers have cut
      Placement written(sizes);
      if (from >= 0) {
        ASSERT_TRUE(written.Split(Ranks(), {.dim = from}).ok());
      }
      const std::string directory = At(std::to_string(sizes[0]) + "-by-" + std::to_string(from));
      SaveCheckpoint(*world, directory,
                     {from < 0 ? ReplicatedTensor("a", whole, *world) : TensorOf(written, PartOfWhole(whole, written))},
                     {});
      const CheckpointIndex index = CheckpointIndex::Read(directory);
      for (const int dim : {0, 1}) {
        Placement placement(sizes);
        ASSERT_TRUE(placement.Split(Ranks(), {.dim = dim}).ok());
        at::Tensor part = torch::zeros(placement.local_sizes());
        const int64_t read = LoadTensors(directory, index, {TensorOf(placement, part)});
        EXPECT_TRUE(torch::equal(part, PartOfWhole(whole, placement)));
        EXPECT_LE(static_cast<double>(read), 1.1 * static_cast<double>(part.nbytes()))
            << at::IntArrayRef(sizes) << " cut along " << from << ", read along " << dim;
        EXPECT_GE(read, static_cast<int64_t>(part.nbytes()));
      }
    }
  }
}

// From one process's checkpoint, from one whose ranks cut along the same dimension, and from one whose ranks cut along
// the other. Sizes that neither ranks nor strips divide; the numbers of ranks are those that the header promises.
TEST_F(BoxCheckpoints, PartsOfManyRanksReadLittleMoreThanTheyKeep) {
  const auto alone = First(1);
  if (alone == nullptr) return;
  const std::vector<int64_t> sizes = {1'210, 2'903};
  const at::Tensor whole = Numbers(sizes);
  const auto part = [&](int dim, int64_t rank, int64_t ranks) {  // as torch.chunk cuts
    Box box = WholeBox(sizes).front();
    const int64_t length = (sizes[dim] + ranks - 1) / ranks;
    box.offset[dim] = std::min(rank * length, sizes[dim]);
    box.sizes[dim] = std::min(length, sizes[dim] - box.offset[dim]);
    return box;
  };
  const auto of = [&](const Box& box) {
    return whole.narrow(0, box.offset[0], box.sizes[0]).narrow(1, box.offset[1], box.sizes[1]);
  };
  const auto save = [&](const std::string& name, int dim, int64_t ranks) {
    std::vector<CheckpointTensor> parts;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Box box = part(dim, rank, ranks);
      if (box.numel() > 0) parts.push_back({.name = "a", .sizes = sizes, .boxes = {box}, .data = of(box).contiguous()});
    }
    SaveCheckpoint(*alone, At(name), parts, {});
    return CheckpointIndex::Read(At(name));
  };
  const auto expect = [&](const std::string& name, const CheckpointIndex& index, const Box& box) {
    at::Tensor data = torch::zeros(box.sizes);
    Box wanted = box;
    wanted.local = {0, 0};
    const int64_t read = LoadTensors(At(name), index, {{.name = "a", .sizes = sizes, .boxes = {wanted}, .data = data}});
    EXPECT_TRUE(torch::equal(data, of(box)));
    EXPECT_LE(static_cast<double>(read), 1.1 * static_cast<double>(data.nbytes()))
        << name << ": " << at::IntArrayRef(box.offset) << " " << at::IntArrayRef(box.sizes);
  };
  const CheckpointIndex one = save("one", 0, 1);
  for (const int64_t ranks : {2, 8, 24, 51}) {
    for (const int dim : {0, 1}) {
      for (int64_t rank = 0; rank < ranks; rank += 3) expect("one", one, part(dim, rank, ranks));
    }
  }
  for (const int64_t ranks : {3, 8, 20}) {
    for (const int dim : {0, 1}) {
      const std::string name = std::to_string(ranks) + "-" + std::to_string(dim);
      const CheckpointIndex index = save(name, dim, ranks);
      for (int64_t rank = 0; rank < ranks; rank += 3) {
        expect(name, index, part(dim, rank, ranks));
        expect(name, index, part(1 - dim, rank, ranks));
      }
    }
  }
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 2}, {4, 2}, {2, 4}}) {  // shard by tensor
    Box box = part(0, rows - 1, rows);
    const Box across = part(1, columns - 1, columns);
    box.offset[1] = across.offset[1];
    box.sizes[1] = across.sizes[1];
    expect("one", one, box);
  }
}

// The size of the index stays in proportion.
TEST_F(BoxCheckpoints, AnIndexKeepsFewChecksums) {
  const auto checksums = [](const std::vector<int64_t>& sizes, const std::vector<int64_t>& whole) {
    int64_t bytes = 0;
    for (const TileGrid& cut : CutsOf(sizes, whole, 4)) {
      const int64_t own = cut.row_tiles() * cut.column_tiles() * kTileChecksumSize;
      EXPECT_LE(own, sizes[0] * sizes[1] * 5 / 4 + 16) << at::IntArrayRef(sizes);  // about a quarter of the bytes
      bytes += own;
    }
    return bytes;
  };
  for (const int64_t rows : {1, 7, 64, 300, 5'000, 50'257}) {
    for (const int64_t columns : {1, 10, 65, 1'024, 12'288}) {
      EXPECT_LE(checksums({rows, columns}, {rows, columns}), 96 * 1024) << rows << " " << columns;
      for (const int64_t pieces : {2, 8, 128}) {
        if (rows % pieces != 0) continue;
        EXPECT_LE(pieces * checksums({rows / pieces, columns}, {rows, columns}), 320 * 1024) << rows << " " << columns;
      }
    }
  }
}

TEST_F(BoxCheckpoints, CheckpointsOfAnotherFormatAreRefused) {
  const auto alone = First(1);
  if (alone == nullptr) return;
  SaveCheckpoint(*alone, At("one"), {ReplicatedTensor("a", Numbers({130, 70}), *alone)}, {});
  const std::string path = At("one") + "/" + kCheckpointIndex;
  nlohmann::json body = nlohmann::json::parse(ReadText(path)).at("body");
  body["format"] = "cohort-checkpoint-4";
  const nlohmann::json whole = {{"body", body}, {"sha256", Sha256(body.dump().data(), body.dump().size())}};
  std::ofstream(path) << whole.dump(1) << "\n";
  EXPECT_THAT(ErrorOf([&] { CheckpointIndex::Read(At("one")); }),
              HasSubstr("has format \"cohort-checkpoint-4\"; this program reads cohort-checkpoint-3"));
}

TEST_F(BoxCheckpoints, ADamagedTileAmongThoseThatAreReadIsNoticed) {
  const auto alone = First(1);
  if (alone == nullptr) return;
  const std::vector<int64_t> sizes = {64, 64};
  SaveCheckpoint(*alone, At("one"), {ReplicatedTensor("a", Numbers(sizes), *alone)}, {});
  const CheckpointIndex index = CheckpointIndex::Read(At("one"));
  const auto& piece = index.tensors().at("a").pieces.front();
  {
    std::fstream file(At("one") + "/" + piece.file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(piece.offset + (40 * 64 + 50) * 4 + 1);
    file.put('\x55');
  }
  const auto load = [&](int64_t begin, int64_t end) {
    at::Tensor rows = torch::zeros({end - begin, 64});
    LoadTensors(At("one"), index, {{.name = "a", .sizes = sizes, .boxes = RowsBox(sizes, begin, end), .data = rows}});
    EXPECT_TRUE(torch::equal(rows, Numbers(sizes).narrow(0, begin, end - begin)));
  };
  load(0, 24);  // tiles that are whole
  EXPECT_THROW(load(24, 64), DistributedError);
}

TEST_F(BoxCheckpoints, GapsAndOverlapsAreRefused) {
  const auto alone = First(1);
  if (alone == nullptr) return;
  const auto save = [&](std::vector<Box> boxes) -> std::string {
    std::vector<CheckpointTensor> parts;
    for (const Box& box : boxes) {
      parts.push_back({.name = "a", .sizes = {4, 4}, .boxes = {box}, .data = torch::zeros(box.sizes)});
    }
    try {
      SaveCheckpoint(*alone, At("bad"), parts, {});
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(save({{{0, 0}, {4, 2}, {0, 0}}}), HasSubstr("8 of 16 elements are nobody's"));
  EXPECT_THAT(save({{{0, 0}, {4, 3}, {0, 0}}, {{0, 2}, {4, 2}, {0, 0}}}), HasSubstr("those of several ranks"));
  EXPECT_EQ(save({{{0, 0}, {4, 2}, {0, 0}}, {{0, 2}, {1, 2}, {0, 0}}, {{1, 2}, {3, 2}, {0, 0}}}), "");
}

// Tensor-parallel layers under FSDP, by hand.
struct CutLayer : torch::nn::Module {
  explicit CutLayer(const Axis& axis) {
    for (const int dim : {0, 1}) {
      Placement placement({6, 8});
      ThrowUnlessOk(placement.Split(axis, {.dim = dim}), "cutting");
      Placements().Add(register_parameter(dim == 0 ? "rows" : "columns", torch::zeros(placement.local_sizes())),
                       placement);
    }
    register_parameter("bias", torch::zeros({6}));
    register_buffer("count", torch::full({2}, 5.0));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST_F(BoxCheckpoints, CheckpointsOfTensorParallelLayersUnderFsdpFillOneProcess) {
  const int tensor = world->size() % 2 == 0 ? 2 : 1;
  auto mesh = DeviceMesh::Create(*world, {world->size() / tensor, tensor}, {"shard", "tensor"});
  ASSERT_TRUE(mesh.ok());
  const auto cut = std::make_shared<CutLayer>((*mesh)->axis("tensor").value());
  const auto shards = (*mesh)->Slice({"shard"}).value();
  FullyShardedDataParallel<CutLayer> fsdp(cut, *shards);
  torch::optim::Adam optimizer(fsdp.parameters(), 0.1);
  for (const auto& item : cut->named_parameters()) {
    at::Tensor parameter = item.value();
    const auto placement = Placements().Of(parameter);
    const torch::NoGradGuard no_grad;
    parameter.copy_(PartOfWhole(Numbers(placement->sizes()), *placement));
    parameter.mutable_grad() = PartOfWhole(Numbers(placement->sizes()) + 1, *placement);
  }
  optimizer.step();
  SaveTrainingState(*world, At("cut"), StateOf(fsdp, optimizer, **mesh), {});

  const auto whole = std::make_shared<CutLayer>(Axis{.name = "tensor"});
  torch::optim::Adam one(whole->parameters(), 0.1);
  LoadTrainingState(*world, At("cut"), StateOf(*whole, one, *world));
  for (const auto& item : whole->named_parameters()) {
    const at::Tensor gradient = Numbers(item.value().sizes().vec()) + 1;
    EXPECT_TRUE(torch::allclose(item.value(), gradient - 1 - 0.1, 1e-4, 1e-4)) << item.key();
    const auto state = OptimizerStateOf(one, item.value());
    EXPECT_EQ(state.at("step").item<int64_t>(), 1);
    EXPECT_TRUE(torch::allclose(state.at("exp_avg"), gradient * 0.1)) << item.key();
  }
  // And back, over the same cut.
  for (const at::Tensor& parameter : cut->parameters()) {
    const torch::NoGradGuard no_grad;
    at::Tensor(parameter).zero_();
  }
  SaveTrainingState(*world, At("whole"), StateOf(*whole, one, *world), {});
  LoadTrainingState(*world, At("whole"), StateOf(fsdp, optimizer, **mesh));
  for (const auto& item : cut->named_parameters()) {
    const auto placement = Placements().Of(item.value());
    EXPECT_TRUE(torch::equal(item.value(), PartOfWhole(whole->named_parameters()[item.key()], *placement)))
        << item.key();
  }
}

TEST_F(BoxCheckpoints, InitialValuesAreThoseOfOneProcess) {
  const auto rules = [](const std::string&, const std::vector<int64_t>&) { return InitRule::Normal(0, 1); };
  const auto cut = std::make_shared<CutLayer>(Ranks()), whole = std::make_shared<CutLayer>(Axis{.name = "tensor"});
  init_parameters(*cut, 5, rules);
  init_parameters(*whole, 5, rules);
  for (const auto& item : cut->named_parameters()) {
    EXPECT_TRUE(torch::equal(
        item.value(), PartOfWhole(whole->named_parameters()[item.key()].detach(), *Placements().OrWhole(item.value()))))
        << item.key();
  }
}

// Fan-in and numbers are those of the unsplit parameters, also where FSDP cuts what a layer has left.
TEST_F(BoxCheckpoints, InitialValuesOfCutLayersUnderFsdpAreThoseOfOneProcess) {
  const int tensor = world->size() % 2 == 0 ? 2 : world->size();
  auto mesh = DeviceMesh::Create(*world, {world->size() / tensor, tensor}, {"shard", "tensor"});
  ASSERT_TRUE(mesh.ok());
  const auto cut = std::make_shared<CutLayer>((*mesh)->axis("tensor").value());
  const auto whole = std::make_shared<CutLayer>(Axis{.name = "tensor"});
  for (const auto& module : {cut, whole}) module->register_parameter("scale", torch::zeros({}));
  FullyShardedDataParallel<CutLayer> fsdp(cut, *(*mesh)->Slice({"shard"}).value());
  const auto rules = [](const std::string& name, const std::vector<int64_t>& sizes) {
    return sizes.size() > 1 ? LikeTorch(name, sizes) : InitRule::Normal(0, 1);
  };
  init_parameters(fsdp, 5, rules);
  init_parameters(*whole, 5, rules);
  for (const auto& item : cut->named_parameters()) {
    const at::Tensor expected = whole->named_parameters()[item.key()].detach();
    const auto placement = Placements().OrWhole(item.value());
    if (expected.dim() > 0) {
      EXPECT_TRUE(torch::equal(item.value(), PartOfWhole(expected, *placement))) << item.key();
    } else if (item.value().numel() > 0) {
      EXPECT_EQ(item.value()[0].item<float>(), expected.item<float>());
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
