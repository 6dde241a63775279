// Checkpoints, seen from inside a job: groups of fewer ranks stand for other world sizes.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/training_state.h"
#include "nlohmann/json.hpp"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;

class AnyModes : public Checkpoints, public testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(AnyModes, AnyModeLoadsAnotherModesCheckpointOnAnyNumberOfRanks) {
  const auto [from, to] = GetParam();
  Trained saved(from, *world);
  saved.Train(0, 3);
  saved.net->count.fill_(42);
  SaveTrainingState(*world, At("step-3"), saved.state, {{"step", "3"}});
  const auto then = saved.Whole();
  saved.Train(3, 6);
  const auto later = saved.Whole();
  for (int size = 1; size <= world->size(); ++size) {
    const auto group = First(size);
    if (group == nullptr) continue;
    Trained loaded(to, *group);
    const auto values = LoadTrainingState(*group, At("step-3"), loaded.state);
    EXPECT_EQ(values.at("step"), "3");
    EXPECT_EQ(loaded.net->count[0].item<float>(), 42);
    ExpectEqual(loaded.Whole(), then, true);
    loaded.Train(3, 6);
    ExpectEqual(loaded.Whole(), later, false);
  }
}
INSTANTIATE_TEST_SUITE_P(Checkpoint, AnyModes,
                         testing::Combine(testing::Values("ddp", "zero", "fsdp"),
                                          testing::Values("ddp", "zero", "fsdp")));

// Whatever byte is lost or changed.
class DamagedCheckpoint : public Checkpoints {};

TEST_F(DamagedCheckpoint, ADamagedCheckpointIsRefusedByNameAndTheOneBeforeLoads) {
  Trained saved("fsdp", *world);
  saved.Train(0, 1);
  SaveTrainingState(*world, At("step-1"), saved.state, {{"step", "1"}});
  const auto before = saved.Whole();
  saved.Train(1, 2);
  SaveTrainingState(*world, At("step-2"), saved.state, {{"step", "2"}});
  Trained loaded("fsdp", *world);
  std::mt19937 random(17);
  for (int trial = 0; trial < 12; ++trial) {
    // Every rank picks the same file and place; rank 0 does it.
    const bool index = trial % 3 == 0;
    const std::string file =
        index ? "index.json" : CheckpointIndex::Read(At("step-2")).tensors().begin()->second.pieces.front().file;
    const std::string path = At("step-2") + "/" + file;
    const std::string good = ReadText(path);
    const size_t place = random() % good.size();
    ASSERT_TRUE(world->Barrier().Wait().ok());
    if (world->rank() == 0) {
      std::string bad = good;
      if (trial % 2 == 0) {
        bad[place] = static_cast<char>(bad[place] ^ (1 << (random() % 8)));
      } else {
        bad.resize(place);
      }
      std::ofstream(path, std::ios::binary) << bad;
    } else if (trial % 2 == 0) {
      random();
    }
    ASSERT_TRUE(world->Barrier().Wait().ok());
    std::string refused;
    const auto found = LoadLatestTrainingState(*world, folder_.string(), loaded.state,
                                               [&](const std::string& why) { refused += why; });
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->values.at("step"), "1") << file << " byte " << place << " of " << good.size();
    EXPECT_THAT(refused, HasSubstr(file));
    EXPECT_THAT(refused, HasSubstr("damaged"));
    ExpectEqual(loaded.Whole(), before, true);
    ASSERT_TRUE(world->Barrier().Wait().ok());
    if (world->rank() == 0) std::ofstream(path, std::ios::binary) << good;
    ASSERT_TRUE(world->Barrier().Wait().ok());
  }
  EXPECT_EQ(LoadLatestTrainingState(*world, folder_.string(), loaded.state)->values.at("step"), "2");
}

// An index that somebody made, with the right sum of what is wrong.
TEST_F(DamagedCheckpoint, AnIndexThatContradictsItselfIsRefused) {
  Trained saved("fsdp", *world);
  SaveTrainingState(*world, At("step-1"), saved.state, {});
  ASSERT_TRUE(world->Barrier().Wait().ok());
  const std::string path = At("step-1") + "/index.json";
  const nlohmann::json good = nlohmann::json::parse(ReadText(path));
  using Change = std::function<void(nlohmann::json & pieces)>;
  const std::vector<Change> changes = {
      [](nlohmann::json& pieces) { pieces[0]["at"][0] = 1; },
      [](nlohmann::json& pieces) { pieces[0]["at"][0] = -1; },
      [](nlohmann::json& pieces) { pieces[0]["at"] = nlohmann::json::array(); },
      [](nlohmann::json& pieces) { pieces[0]["sizes"][0] = -1; },
      [](nlohmann::json& pieces) { pieces[0]["sizes"][0] = int64_t{1} << 60; },
      [](nlohmann::json& pieces) { pieces[0]["cuts"][0]["tile"] = {0, 1}; },
      [](nlohmann::json& pieces) { pieces[0]["cuts"][0]["checksums"] = ""; },
      [](nlohmann::json& pieces) { pieces[0]["cuts"] = nlohmann::json::array(); },
      [](nlohmann::json& pieces) { pieces[0]["cuts"][0]["tile"] = {1, int64_t{1} << 60}; },
      [](nlohmann::json& pieces) { pieces.push_back(pieces[0]); },
      [](nlohmann::json& pieces) { pieces[0]["file"] = "../elsewhere"; },
      [](nlohmann::json& pieces) { pieces[0]["file"] = "nowhere.safetensors"; },
      [](nlohmann::json& pieces) { pieces[0]["offset"] = -8; },
      [](nlohmann::json& pieces) { pieces[0]["offset"] = std::numeric_limits<int64_t>::max(); },
      [](nlohmann::json& pieces) { pieces.clear(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    nlohmann::json bad = good;
    changes[i](bad["body"]["tensors"].begin().value()["pieces"]);
    const std::string body = bad["body"].dump();
    bad["sha256"] = Sha256(body.data(), body.size());
    const std::string folder = At("bad-" + std::to_string(i) + "-" + std::to_string(world->rank()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/index.json", std::ios::binary) << bad.dump(1) << "\n";
    try {
      CheckpointIndex::Read(folder);
      ADD_FAILURE() << "change " << i << " was accepted";
    } catch (const DistributedError& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << i << error.what();
    }
    RemoveTree(folder);
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
}

// Each would take all of the stack or keep a rank waiting.
TEST_F(DamagedCheckpoint, PipesAndDeeplyNestedIndexesAreRefused) {
  Trained saved("ddp", *world);
  SaveTrainingState(*world, At("step-1"), saved.state, {{"step", "1"}});
  SaveTrainingState(*world, At("step-2"), saved.state, {{"step", "2"}});
  const std::string index = At("step-2/index.json");
  const std::string file = CheckpointIndex::Read(At("step-2")).tensors().begin()->second.pieces.front().file;
  const std::string deep = "{\"body\": " + std::string(500000, '[') + std::string(500000, ']') + "}\n";
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> cases = {
      {index, [&](const std::string& path) { std::ofstream(path) << deep; }},
      {index, [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
      {At("step-2/") + file, [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
  };
  for (const auto& [path, replace] : cases) {
    ASSERT_TRUE(world->Barrier().Wait().ok());
    if (world->rank() == 0) {
      fs::rename(path, At("good"));
      replace(path);
    }
    ASSERT_TRUE(world->Barrier().Wait().ok());
    std::string refused;
    const auto loaded =
        LoadLatestTrainingState(*world, folder_.string(), saved.state, [&](const std::string& why) { refused = why; });
    EXPECT_EQ(loaded->values.at("step"), "1");
    EXPECT_THAT(refused, HasSubstr(path + " is damaged"));
    ASSERT_TRUE(world->Barrier().Wait().ok());
    if (world->rank() == 0) fs::rename(At("good"), path);
  }
}

// One process, every byte of a small checkpoint.
TEST_F(DamagedCheckpoint, DamageOfAnyByteIsRefused) {
  const auto alone = First(1);
  if (alone == nullptr) return;
  const at::Tensor tensor = torch::arange(10, torch::kFloat32);
  const std::string directory = At("small");
  SaveCheckpoint(*alone, directory, {ReplicatedTensor("a", tensor, *alone)}, {});
  at::Tensor target = torch::zeros({10});
  const auto load = [&] {
    LoadTensors(directory, CheckpointIndex::Read(directory), {ReplicatedTensor("a", target, *alone)});
  };
  load();
  EXPECT_TRUE(torch::equal(target, tensor));
  for (const std::string file : {"index.json", "rank-00000-of-00001.safetensors"}) {
    const std::string path = directory + "/" + file;
    const std::string good = ReadText(path);
    for (size_t place = 0; place < good.size(); ++place) {
      for (const bool cut : {true, false}) {
        std::string bad = good.substr(0, place);
        if (!cut) bad += static_cast<char>(good[place] ^ 1) + good.substr(place + 1);
        std::ofstream(path, std::ios::binary) << bad;
        try {
          load();
          ADD_FAILURE() << file << (cut ? " cut at " : " changed at ") << place << " was accepted";
        } catch (const DistributedError& error) {
          EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << error.what_without_backtrace();
          EXPECT_THAT(error.what_without_backtrace(), HasSubstr(file)) << (cut ? "cut at " : "changed at ") << place;
        }
      }
    }
    std::ofstream(path, std::ios::binary) << good;
  }
  load();
}

// On `failing`, files can't grow beyond `bytes` while it lives: a disk that is full.
class FullDisk {
 public:
  FullDisk(int failing, uintmax_t bytes) : here_(world->rank() == failing), handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const struct rlimit small = {bytes, before_.rlim_max};
    if (here_) {
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    }
  }
  ~FullDisk() {
    if (here_) {
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    }
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  const bool here_;
  void (*const handler_)(int);
  struct rlimit before_{};
};

// At its first byte, its last and one between, of every rank's file and of the index.
TEST_F(Checkpoints, AFailedWriteIsAnErrorEverywhereAndLosesNothing) {
  Trained saved("ddp", *world);
  saved.Train(0, 1);
  SaveTrainingState(*world, At("latest"), saved.state, {{"step", "1"}});
  const auto before = saved.Whole();
  saved.Train(1, 2);
  const auto file_of = [](int rank) {
    char name[64];
    std::snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", rank, world->size());
    return std::string(name);
  };
  struct Case {
    int rank;
    std::string file;
    uintmax_t bytes;
  };
  std::vector<Case> cases;
  for (int rank = 0; rank < world->size(); ++rank) {
    const uintmax_t size = fs::file_size(At("latest") + "/" + file_of(rank));
    for (const uintmax_t bytes : {uintmax_t{0}, size / 2, size - 1}) cases.push_back({rank, file_of(rank), bytes});
  }
  const uintmax_t first = fs::file_size(At("latest") + "/" + file_of(0));
  const uintmax_t index = fs::file_size(At("latest") + "/index.json");
  if (index > first) cases.push_back({0, "index.json", index - 1});
  for (const Case& each : cases) {
    try {
      const FullDisk full(each.rank, each.bytes);
      SaveTrainingState(*world, At("latest"), saved.state, {{"step", "2"}});
      ADD_FAILURE() << "nobody noticed that " << each.file << " ends at " << each.bytes;
    } catch (const DistributedError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank " + std::to_string(each.rank)));
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr(each.file));
    }
    ASSERT_TRUE(world->Barrier().Wait().ok());
    EXPECT_FALSE(fs::exists(At("latest.partial")));
    Trained loaded("ddp", *world);
    EXPECT_EQ(LoadTrainingState(*world, At("latest"), loaded.state).at("step"), "1");
    ExpectEqual(loaded.Whole(), before, true);
  }
  Trained loaded("ddp", *world);
  SaveTrainingState(*world, At("latest"), saved.state, {{"step", "2"}});
  EXPECT_EQ(LoadTrainingState(*world, At("latest"), loaded.state).at("step"), "2") << "replaces what was there";
}

// Two jobs with one directory: the second one gets an error, and what the first one writes is whole.
TEST_F(Checkpoints, ADirectoryBelongsToOneJobAtATime) {
  Trained saved("ddp", *world);
  int held = -1;
  if (world->rank() == 0) {
    fs::create_directory(At("step-1.partial"));
    std::ofstream(At("step-1.partial/rank-00000-of-00009.safetensors")) << "the other job's";
    held = ::open(At("step-1.partial").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  }
  try {
    SaveTrainingState(*world, At("step-1"), saved.state, {});
    ADD_FAILURE() << "nobody noticed the other job";
  } catch (const DistributedError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("another job is saving in " + At("step-1.partial")));
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
  EXPECT_TRUE(fs::exists(At("step-1.partial/rank-00000-of-00009.safetensors")));
  ASSERT_TRUE(world->Barrier().Wait().ok());
  ::close(held);  // killed
  SaveTrainingState(*world, At("step-1"), saved.state, {{"step", "1"}});
  EXPECT_EQ(LoadTrainingState(*world, At("step-1"), saved.state).at("step"), "1");
  EXPECT_FALSE(fs::exists(At("step-1.partial")));
}

TEST_F(Checkpoints, CheckpointsReplaceNothingElse) {
  Trained saved("ddp", *world);
  if (world->rank() == 0) {
    fs::create_directory(At("home"));
    std::ofstream(At("home/precious")) << "the user's";
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
  EXPECT_THROW(SaveTrainingState(*world, At("home"), saved.state, {}), DistributedError);
  EXPECT_TRUE(fs::exists(At("home/precious")));
  EXPECT_FALSE(fs::exists(At("home.partial")));
}

TEST_F(Checkpoints, CheckpointsAreWrittenWhileTrainingGoesOn) {
  std::vector<at::Tensor> then;
  {
    Trained saved("fsdp", *world);
    AsyncCheckpointer checkpointer(*world);
    for (int step = 0; step < 3; ++step) {
      saved.Train(step, step + 1);
      checkpointer.Save(At("step-" + std::to_string(step)), saved.state, {{"step", std::to_string(step)}});
      then = saved.Whole();
      saved.Train(step + 1, step + 2);
    }
    checkpointer.Wait();
    checkpointer.Wait();
    checkpointer.Save(At("step-0/index.json/within"), saved.state, {});
    EXPECT_THROW(checkpointer.Wait(), DistributedError);
    checkpointer.Save(At("a/folder/at-the-end/"), saved.state, {});
    testing::internal::CaptureStderr();
    AsyncCheckpointer(*world).Save(At("step-0/index.json/unasked"), saved.state, {});
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("AsyncCheckpointer: nobody asked"));
  }
  EXPECT_TRUE(fs::exists(At("a/folder/at-the-end/index.json")));
  Trained loaded("ddp", *world);
  EXPECT_EQ(LoadTrainingState(*world, At("step-2"), loaded.state).at("step"), "2");
  ExpectEqual(loaded.Whole(), then, true);
}

TEST_F(Checkpoints, SavingWaitsForASlowRankAsLongAsItIsTold) {
  constexpr std::chrono::milliseconds kShort(200);
  Trained saved("ddp", *world);
  SaveTrainingState(*world, At("there"), saved.state, {});
  using Call = std::function<void(comm::Communicator&)>;
  const std::vector<Call> calls = {
      [&](comm::Communicator& group) { TogetherOrNot(group, "writing", [] {}, kShort); },
      [&](comm::Communicator& group) { SaveTrainingState(group, At("new"), saved.state, {}, kShort); },
      [&](comm::Communicator& group) { LoadTrainingState(group, At("there"), saved.state, kShort); },
      [&](comm::Communicator& group) {
        LoadLatestTrainingState(group, folder_.string(), saved.state, nullptr, kShort);
      },
      [&](comm::Communicator& group) { AsyncCheckpointer(group, kShort).Save(At("new"), saved.state, {}); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    auto group = world->Duplicate();
    ASSERT_TRUE(group.ok()) << group.status();
    if (world->rank() == 0) {  // comes when the others have given up
      EXPECT_TRUE(world->Barrier().Wait().ok());
    }
    try {
      calls[i](**group);
      EXPECT_EQ(world->size(), 1);
    } catch (const DistributedError& error) {
      if (world->rank() != 0) {
        EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded) << error.what_without_backtrace();
      }
    }
    if (world->rank() != 0) {
      EXPECT_TRUE(world->Barrier().Wait().ok());
    }
  }
}

// The others would wait for it as for a slow disk.
TEST_F(Checkpoints, ARankThatCannotListItsPartIsAnErrorEverywhere) {
  Trained saved("ddp", *world);
  saved.Train(0, 1);
  const int failing = world->size() - 1;
  torch::optim::LBFGS unknown(saved.net->parameters());
  TrainingState state = saved.state;
  if (world->rank() == failing) state.groups = &unknown;
  const auto expect_refused = [&](const std::function<void()>& save) {
    try {
      save();
      ADD_FAILURE() << "nobody noticed";
    } catch (const DistributedError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank " + std::to_string(failing)));
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("can't be kept"));
    }
  };
  expect_refused([&] { SaveTrainingState(*world, At("step-1"), state, {}); });
  AsyncCheckpointer checkpointer(*world);
  expect_refused([&] { checkpointer.Save(At("step-1"), state, {}); });
  EXPECT_FALSE(fs::exists(At("step-1")));
  checkpointer.Save(At("step-1"), saved.state, {});
  checkpointer.Wait();
  EXPECT_TRUE(fs::exists(At("step-1") + "/index.json"));
}

// Ranks may have different ones, as running statistics of their own inputs: pieces of several are nobody's.
TEST_F(Checkpoints, AnyExceptionOfARankIsAnErrorEverywhere) {
  const int failing = world->size() - 1;
  const std::vector<std::function<void()>> throwing = {[] { throw std::runtime_error(""); }, [] { throw 5; }};
  for (const auto& work : throwing) {
    try {
      TogetherOrNot(*world, "writing", [&] {
        if (world->rank() == failing) work();
      });
      ADD_FAILURE() << "nobody noticed";
    } catch (const DistributedError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("writing: rank " + std::to_string(failing) + ": "));
    }
  }
}

TEST_F(Checkpoints, CheckpointsHaveTheBuffersOfOneRank) {
  for (const std::string mode : {"ddp", "zero", "fsdp"}) {
    Trained saved(mode, *world);
    saved.net->count.fill_(10 + world->rank());
    SaveTrainingState(*world, At(mode), saved.state, {});
    {
      AsyncCheckpointer checkpointer(*world);
      checkpointer.Save(At(mode + "-async"), saved.state, {});
      checkpointer.Wait();
    }
    for (const std::string& name : {mode, mode + "-async"}) {
      Trained loaded(mode, *world);
      LoadTrainingState(*world, At(name), loaded.state);
      EXPECT_TRUE(torch::equal(loaded.net->count, torch::full({2}, 10.0))) << name << loaded.net->count;
    }
  }
}

TEST_F(Checkpoints, CheckpointsAreExportedAsOneFile) {
  Trained saved("fsdp", *world);
  saved.Train(0, 1);
  SaveTrainingState(*world, At("step-1"), saved.state, {});
  const auto whole = saved.Whole();
  if (world->rank() != 0) return;
  const std::string path = At("model.safetensors");
  std::ofstream(path) << "what was there";
  ExportSafetensors(At("step-1"), path);
  const std::string text = ReadText(path);
  int64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  const auto header = nlohmann::json::parse(text.substr(8, static_cast<size_t>(length)));
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  const auto& weight = header["first.weight"];
  EXPECT_EQ(weight["dtype"], "F32");
  EXPECT_EQ(weight["shape"], (std::vector<int64_t>{7, 4}));
  const at::Tensor read = torch::empty({7, 4});
  std::memcpy(read.data_ptr(), text.data() + 8 + length + weight["data_offsets"][0].get<int64_t>(), read.nbytes());
  EXPECT_TRUE(torch::equal(read, whole[0]));
  EXPECT_THROW(ExportSafetensors(At("step-1"), At("no/such/file")), DistributedError);
  EXPECT_THROW(ExportSafetensors(At("step-1"), path, "nothing."), c10::Error);
  const std::string device = At("device");  // as /dev/null, which a file must not replace
  ASSERT_EQ(mkfifo(device.c_str(), 0600), 0);
  EXPECT_THROW(ExportSafetensors(At("step-1"), device), DistributedError);
  EXPECT_TRUE(fs::is_fifo(device));
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(path).parent_path())) {
    EXPECT_EQ(entry.path().string().find(".part"), std::string::npos) << entry.path() << " was left behind";
  }
}

TEST_F(Checkpoints, TensorsThatDoNotFitAreNamed) {
  Trained saved("ddp", *world);
  SaveTrainingState(*world, At("step-0"), saved.state, {});
  auto other = std::make_shared<Net>(6);
  DistributedDataParallel<Net> ddp(other, *world);
  AdamW optimizer(other->parameters(), AdamWOptions(0.1));
  try {
    LoadTrainingState(*world, At("step-0"), StateOf(*other, optimizer, *world));
    FAIL() << "accepted";
  } catch (const DistributedError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("model.first.weight"));
  }
  EXPECT_THROW(LoadTrainingState(*world, At("nowhere"), saved.state), DistributedError);
  EXPECT_THROW(SaveTrainingState(*world, At("step-0/index.json/within"), saved.state, {}), DistributedError);
  EXPECT_FALSE(LoadLatestTrainingState(*world, At("nowhere"), saved.state).has_value());
}

}  // namespace
}  // namespace cohort::trainer
