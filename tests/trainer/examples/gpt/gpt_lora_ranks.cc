// train_gpt --lora: adapters train under every mode and on every mesh as in one process, and the base keeps its bits.
#include <filesystem>
#include <map>

#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/examples/gpt/gpt_adapter.h"
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
    if (world->rank() == 0) fs::remove_all(path_);
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

struct Result {
  Trace trace;
  std::map<std::string, at::Tensor> adapters;
};

// Trains, and compares the base's bits with those before.
Result Train(TrainGptOptions options, bool alone, const std::string& folder, const std::string& what) {
  options.export_adapter = folder;
  OwnTraining training(options, alone);
  EXPECT_EQ(training->trainable, options.model.layers * 3 * (4 * 12 + 2 * 12 + 2 * 5 * 12)) << what;
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

TEST(GptLora, TrainsUnderEveryModeAndOnEveryMeshAsInOneProcess) {
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
