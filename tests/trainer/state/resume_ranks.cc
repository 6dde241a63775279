// Going on from a checkpoint: all ranks from the same one, whatever each of them sees, and each with its examples.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "cohort/trainer/state/training_state.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::string NameOf(int rank) {
  char name[64];
  std::snprintf(name, sizeof name, "rank-%05d-of-%05d.safetensors", rank, world->size());
  return name;
}

// Each rank has a folder with copies of the checkpoints of steps 1 and 2: what it sees of a network's file system.
class Resume : public Checkpoints {
 protected:
  void SetUp() override {
    Checkpoints::SetUp();
    last_ = world->size() - 1;
    if (world->rank() == 0) fs::create_directory(At("all"));
    saved_ = std::make_unique<Trained>("ddp", *world);
    for (int step = 1; step <= 2; ++step) {
      saved_->Train(step - 1, step);
      whole_.push_back(saved_->Whole());
      const std::string number = std::to_string(step);
      SaveTrainingState(*world, At("all/step-" + number), saved_->state, {{"step", number}});
    }
  }
  // A new one, of `rank` changed by `change`.
  std::string Root(int rank, const std::function<void(const fs::path&)>& change) {
    const fs::path root = At("own-" + std::to_string(roots_++) + "-" + std::to_string(world->rank()));
    fs::copy(At("all"), root, fs::copy_options::recursive);
    if (world->rank() == rank) change(root);
    return root.string();
  }
  // That all ranks load step `step` from their roots; what was refused.
  std::string ExpectStep(int step, const std::string& root) {
    Trained loaded("ddp", *world);
    std::string refused;
    const auto found =
        LoadLatestTrainingState(*world, root, loaded.state, [&](const std::string& why) { refused += why; });
    EXPECT_TRUE(found.has_value());
    if (found.has_value()) {
      EXPECT_EQ(found->values.at("step"), std::to_string(step));
      EXPECT_EQ(found->directory, root + "/step-" + std::to_string(step));
    }
    ExpectEqual(loaded.Whole(), whole_[step - 1], true);
    return refused;
  }
  // The error that all ranks get.
  std::string ErrorOf(const std::string& root, absl::StatusCode code) {
    try {
      LoadLatestTrainingState(*world, root, saved_->state);
    } catch (const DistributedError& error) {
      EXPECT_EQ(error.code(), code);
      return error.what_without_backtrace();
    }
    ADD_FAILURE() << "loaded";
    return "";
  }
  int last_ = 0;
  int roots_ = 0;
  std::unique_ptr<Trained> saved_;
  std::vector<std::vector<at::Tensor>> whole_;  // after steps 1 and 2
};

TEST_F(Resume, AllRanksResumeFromTheCheckpointThatRank0Finds) {
  EXPECT_THAT(ExpectStep(2, Root(-1, nullptr)), IsEmpty());
  EXPECT_THAT(ExpectStep(1, Root(0, [](const fs::path& root) { RemoveTree(root / "step-2"); })), IsEmpty());
  if (last_ == 0) return;
  const auto add = [](const fs::path& root) {
    fs::copy(root / "step-1", root / "step-9", fs::copy_options::recursive);
  };
  EXPECT_THAT(ExpectStep(2, Root(last_, add)), IsEmpty()) << "what only another rank sees";
}

TEST_F(Resume, GoesBackTogetherWhereOneRankCannotRead) {
  const std::string rank = "rank " + std::to_string(last_) + ": ";
  const std::string file = NameOf(0);  // which all ranks read
  const auto cut = [&](const fs::path& root) {
    fs::resize_file(root / "step-2" / file, fs::file_size(root / "step-2" / file) - 1);
  };
  EXPECT_THAT(ExpectStep(1, Root(last_, cut)), AllOf(HasSubstr(rank), HasSubstr(file), HasSubstr("damaged")));
  if (last_ == 0) return;
  const auto lose = [](const fs::path& root) { RemoveTree(root / "step-2"); };
  EXPECT_THAT(ExpectStep(1, Root(last_, lose)), AllOf(HasSubstr(rank), HasSubstr("step-2"), HasSubstr("No such file")));
  // Whole, but not what rank 0 sees under that name.
  const auto replace = [](const fs::path& root) {
    RemoveTree(root / "step-2");
    fs::copy(root / "step-1", root / "step-2", fs::copy_options::recursive);
  };
  EXPECT_THAT(ExpectStep(1, Root(last_, replace)), AllOf(HasSubstr(rank), HasSubstr("step-2"), HasSubstr("damaged")));
}

TEST_F(Resume, SaysWhereAnIndexIsLost) {
  const auto lose = [](const fs::path& root) { fs::remove(root / "step-2" / "index.json"); };
  EXPECT_THAT(ExpectStep(1, Root(0, lose)), AllOf(HasSubstr("step-2 is incomplete"), HasSubstr("no index.json")));
  const auto lose_all = [](const fs::path& root) {
    for (const char* step : {"step-1", "step-2"}) fs::remove(root / step / "index.json");
  };
  EXPECT_THAT(ErrorOf(Root(0, lose_all), absl::StatusCode::kDataLoss),
              AllOf(HasSubstr("none of the checkpoints"), HasSubstr("step-1 is incomplete"),
                    HasSubstr("step-2 is incomplete")));
}

// Killed while one was replaced, on a file system that can't exchange directories.
TEST_F(Resume, ReadsTheCheckpointThatWasPutAside) {
  const auto put_aside = [](const fs::path& root) { fs::rename(root / "step-2", root / "step-2.replaced"); };
  const std::string root = At("all");
  ASSERT_TRUE(world->Barrier().Wait().ok());
  if (world->rank() == 0) put_aside(root);
  ASSERT_TRUE(world->Barrier().Wait().ok());
  EXPECT_THAT(ExpectStep(2, root), IsEmpty());
  EXPECT_EQ(LoadTrainingState(*world, root + "/step-2/", saved_->state).at("step"), "2");
  SaveTrainingState(*world, root + "/step-2", saved_->state, {{"step", "2"}});
  EXPECT_FALSE(fs::exists(root + "/step-2.replaced"));
  EXPECT_THAT(ExpectStep(2, root), IsEmpty());
}

TEST_F(Resume, FailsTogetherWithTheCause) {
  const std::string file = NameOf(0);
  const auto cut_all = [&](const fs::path& root) {
    for (const char* step : {"step-1", "step-2"}) fs::resize_file(root / step / file, 10);
  };
  EXPECT_THAT(ErrorOf(Root(last_, cut_all), absl::StatusCode::kDataLoss),
              AllOf(HasSubstr("none of the checkpoints"), HasSubstr("rank " + std::to_string(last_)),
                    HasSubstr("step-2/" + file), HasSubstr("step-1/" + file)));
  const auto loop = [&](const fs::path& root) {
    fs::remove(root / "step-2" / file);
    fs::create_symlink(file, root / "step-2" / file);
  };
  EXPECT_THAT(ErrorOf(Root(last_, loop), absl::StatusCode::kUnavailable),
              AllOf(HasSubstr("rank " + std::to_string(last_)), HasSubstr("step-2/" + file),
                    HasSubstr("Too many levels of symbolic links")));
  const auto no_folder = [](const fs::path& root) {
    RemoveTree(root);
    std::ofstream(root) << "a file";
  };
  const std::string root = Root(0, no_folder);
  EXPECT_THAT(ErrorOf(root, absl::StatusCode::kUnavailable),
              AllOf(HasSubstr("rank 0"), HasSubstr("can't look for checkpoints in"), HasSubstr("Not a directory")));
  const auto none = [](const fs::path& root) { RemoveTree(root); };
  EXPECT_FALSE(LoadLatestTrainingState(*world, Root(0, none), saved_->state).has_value()) << "rank 0 has none";
}

// How often each example is seen, on all ranks of `group`.
std::map<int64_t, int> Times(comm::Communicator& group, const std::vector<int64_t>& mine) {
  std::vector<int64_t> all(mine.size() * group.size());
  const auto count = static_cast<int64_t>(mine.size());
  EXPECT_TRUE(group.AllGather(comm::ConstBuffer(mine.data(), count), comm::Buffer(all.data(), count * group.size()))
                  .Wait()
                  .ok());
  std::map<int64_t, int> times;
  for (const int64_t example : all) ++times[example];
  return times;
}

// Some batches of an epoch on all ranks, the rest on fewer: every example once.
TEST_F(Resume, ShowsEachExampleOfTheEpochOnce) {
  constexpr int64_t kBatch = 2;
  constexpr int64_t kSteps = 3;
  constexpr int64_t kRest = 24;  // can be shared by 1 to 4 ranks
  const int64_t before = kBatch * kSteps * world->size();
  const DistributedSamplerOptions options = {.seed = 7};
  DistributedSampler sampler(before + kRest, world->size(), world->rank(), options);
  sampler.set_epoch(5);
  std::vector<int64_t> mine = sampler.indices();
  mine.resize(kBatch * kSteps);
  const std::map<int64_t, int> seen = Times(*world, mine);
  sampler.set_consumed(before);
  SaveTrainingState(*world, At("middle"), saved_->state, sampler.state_dict());
  for (int size = 1; size <= world->size(); ++size) {
    const auto group = First(size);
    if (group == nullptr) continue;
    Trained loaded("fsdp", *group);
    DistributedSampler rest(before + kRest, size, group->rank(), options);
    rest.load_state_dict(LoadTrainingState(*group, At("middle"), loaded.state));
    rest.set_epoch(5);  // by the loop
    EXPECT_EQ(rest.num_samples(), kRest / size);
    std::map<int64_t, int> times = Times(*group, rest.indices());
    for (const auto& [example, count] : seen) times[example] += count;
    EXPECT_EQ(static_cast<int64_t>(times.size()), before + kRest) << "on " << size << " ranks";
    for (const auto& [example, count] : times) EXPECT_EQ(count, 1) << "example " << example << " on " << size;
    rest.set_epoch(6);
    EXPECT_EQ(rest.num_samples(), (before + kRest + size - 1) / size) << "all of the next epoch";
  }
}

}  // namespace
}  // namespace cohort::trainer
