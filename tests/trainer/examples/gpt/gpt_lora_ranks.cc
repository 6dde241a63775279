// train_gpt --lora: adapters train under every mode and on every mesh as in one process, and the base keeps its bits.
#include <filesystem>
#include <map>

#include "cohort/trainer/adapter/lora_files.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/examples/gpt/gpt_adapter.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "cohort/trainer/state/checkpoint/safetensors_file.h"
#include "tests/trainer/examples/gpt/gpt_ranks.h"

namespace cohort::examples {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensors = "/adapter_model.safetensors";

// A folder that all ranks know, until this ends.
class SharedFolder {
 public:
  SharedFolder() : path_(testing::TempDir() + "gpt_lora.XXXXXX") {
    if (world->rank() == 0) {
      EXPECT_NE(::mkdtemp(path_.data()), nullptr);
    }
    EXPECT_TRUE(world->Broadcast(comm::Buffer(path_.data(), static_cast<int64_t>(path_.size())), 0).Wait().ok());
  }
  ~SharedFolder() {
    EXPECT_TRUE(world->Barrier().Wait().ok());
    if (world->rank() == 0) trainer::RemoveTree(path_);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TrainGptOptions Adapted() {
  TrainGptOptions options = SmallGpt();
  options.lora = 3;
  options.learning_rate = 0.03;
  options.clip = 1e9;
  options.model.dropout = 0.2;
  return options;
}

std::map<std::string, at::Tensor> FrozenOf(const Training& training) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : training.module->named_parameters()) {
    if (!item.value().requires_grad()) values[trainer::UnwrappedName(item.key())] = item.value().detach().clone();
  }
  return values;
}

// r (in + out) for each layer with an adapter.
int64_t Numbers(const TrainGptOptions& options) {
  int64_t sum = 0;
  for (const std::string& target : options.lora_targets) {
    const std::map<std::string, int64_t> in_and_out = {{"qkv", 12 + 36},  {"out", 12 + 12},    {"up", 12 + 48},
                                                       {"down", 48 + 12}, {"tokens", 65 + 12}, {"head", 12 + 65}};
    sum += options.lora * in_and_out.at(target) * (target == "tokens" || target == "head" ? 1 : options.model.layers);
  }
  return sum;
}

struct Result {
  Trace trace;
  std::map<std::string, at::Tensor> adapters;
};

// Trains, and compares the base's bits with those before.
Result Train(TrainGptOptions options, bool alone, const std::string& folder, const std::string& what) {
  options.export_adapter = folder;
  OwnTraining training(options, alone);
  EXPECT_EQ(training->trainable, Numbers(options)) << what;
  const auto before = FrozenOf(*training);
  Result result{.trace = TraceOf(training), .adapters = {}};
  if (training->state.shards != nullptr) training->state.shards->Reshard();
  const auto after = FrozenOf(*training);
  EXPECT_EQ(after.size(), before.size()) << what;
  for (const auto& [name, values] : before) EXPECT_TRUE(torch::equal(values, after.at(name))) << what << " " << name;
  ExportAdapter(*training);
  result.adapters = trainer::ReadSafetensors(folder + kTensors);
  return result;
}

// A training of `options` takes adapters that another one has written, and writes them again: the same bits.
void ExpectLoads(TrainGptOptions options, const std::string& from, const std::string& to, const std::string& what) {
  options.export_adapter = to;
  OwnTraining training(options);
  trainer::load_adapter(*training->lora, *training->world, from);
  ExportAdapter(*training);
  const auto expected = trainer::ReadSafetensors(from + kTensors), loaded = trainer::ReadSafetensors(to + kTensors);
  ASSERT_EQ(loaded.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) EXPECT_TRUE(torch::equal(loaded.at(name), values)) << what << " " << name;
}

TEST(GptLora, AdaptersTrainUnderEveryModeAndMeshAsInOneProcess) {
  const SharedFolder folder;
  const TrainGptOptions options = Adapted();
  const Result expected =
      Train(options, /*alone=*/true, folder.path() + "/alone" + std::to_string(world->rank()), "alone");
  EXPECT_EQ(expected.adapters.size(), static_cast<size_t>(options.model.layers * 4 * 2));
  EXPECT_LT(expected.trace.back().first, expected.trace.front().first);
  std::vector<TrainGptOptions> runs;
  for (const char* const mode : {"ddp", "zero1", "zero2", "fsdp"}) {
    runs.push_back(options);
    runs.back().mode = mode;
  }
  for (const std::string& mesh : MeshesOfAllAxes()) {
    runs.push_back(options);
    runs.back().mesh = mesh;
    runs.back().schedule = SchedulesFor(mesh).back();  // zbv: the first stage has no adapter, and no gradient
  }
  int number = 0;
  for (const TrainGptOptions& run : runs) {
    const std::string what = run.mesh.empty() ? run.mode : run.mesh;
    const Result result = Train(run, /*alone=*/false, folder.path() + "/" + std::to_string(number++), what);
    ExpectSame(result.trace, expected.trace, 1e-4, what);
    ASSERT_EQ(result.adapters.size(), expected.adapters.size()) << what;
    for (const auto& [name, values] : expected.adapters) {
      EXPECT_TRUE(torch::allclose(result.adapters.at(name), values, 1e-3, 1e-3)) << what << " " << name;
    }
    ExpectLoads(run, folder.path() + "/alone0", folder.path() + "/" + std::to_string(number++), what);
  }
}

TEST(GptLora, TiedEmbeddingsStayAsTheyAre) {
  const SharedFolder folder;
  TrainGptOptions options = Adapted();
  options.model.tied = true;
  const Result expected =
      Train(options, /*alone=*/true, folder.path() + "/alone" + std::to_string(world->rank()), "alone");
  if (world->size() > 4) options.schedule = "gpipe";
  options.mesh = "pipeline=" + std::to_string(world->size());
  ExpectSame(Train(options, /*alone=*/false, folder.path() + "/all", "tied").trace, expected.trace, 1e-4, "tied");
}

// First and last stage have copies of the base's weight, and an adapter each. No rank merges them: they are one weight
// in checkpoints.
TEST(GptLora, TiedEmbeddingsAreAdapted) {
  const SharedFolder folder;
  TrainGptOptions options = Adapted();
  options.model.tied = true;
  options.lora_targets = {"tokens", "head"};
  const Result expected =
      Train(options, /*alone=*/true, folder.path() + "/alone" + std::to_string(world->rank()), "alone");
  EXPECT_LT(expected.trace.back().first, expected.trace.front().first);
  int number = 0;
  for (const std::string& mesh : MeshesOfAllAxes()) {
    options.mesh = mesh;
    options.schedule = SchedulesFor(mesh).front();
    const std::string to = folder.path() + "/" + std::to_string(number++);
    const Result result = Train(options, /*alone=*/false, to, mesh);
    ExpectSame(result.trace, expected.trace, 1e-4, mesh);
    for (const auto& [name, values] : expected.adapters) {
      EXPECT_TRUE(torch::allclose(result.adapters.at(name), values, 1e-3, 1e-3)) << mesh << " " << name;
    }
    if (mesh.find("pipeline") == std::string::npos) continue;
    const OwnTraining training(options);
    EXPECT_THROW(training->lora->merge(), c10::Error) << mesh;
  }
}

TEST(GptLora, NamesLayersThatAreNotThere) {
  TrainGptOptions options = Adapted();
  options.lora_targets = {"query"};
  try {
    const OwnTraining training(options, /*alone=*/true);
    ADD_FAILURE() << "there is no such layer";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no layer of the model is named query"));
  }
}

}  // namespace
}  // namespace cohort::examples
