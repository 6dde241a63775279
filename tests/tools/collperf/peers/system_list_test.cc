#include "tools/collperf/peers/system_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tools/measure/session_memory.h"

namespace cohort::collperf {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const SystemEntry& Find(const std::string& name) {
  for (const SystemEntry& system : Systems()) {
    if (system.name == name) return system;
  }
  ADD_FAILURE() << "there is no system " << name;
  return Systems().front();
}

TEST(SystemList, NamesAreDifferentAndAllSystemsHaveASlot) {
  std::set<std::string> names;
  for (const SystemEntry& system : Systems()) {
    names.insert(system.name);
    EXPECT_FALSE(system.program.empty()) << system.name;
    EXPECT_TRUE(system.role == Role::kOurs || !system.remedy.empty()) << system.name;
  }
  EXPECT_EQ(Systems().front().role, Role::kOurs);
  EXPECT_THAT(names, SizeIs(Systems().size()));
  EXPECT_LE(names.size(), size_t{measure::kMostSystems});
  EXPECT_THAT(NamesBesideOurs(), HasSubstr("mpich5, intelmpi"));
}

// The session's facts come last, for a command of one rank with the folder and the rank.
TEST(SystemList, CommandsStartAllRanksOrOneEach) {
  std::vector<std::string> missing;
  const SessionPlace place{.bin = "/build/x/bin", .memory = "memory", .folder = "folder", .ranks = 3};
  const StartPlan ours = StartPlansFor(Transport::kTcp, place, &missing).front();
  EXPECT_THAT(ours.commands, ElementsAre(ElementsAre("/build/x/bin/dlaunch", "-n", "3", "--simulate-nodes", "3",
                                                     "/build/x/bin/collperf", "--serve", "memory", "3", "0")));
  EXPECT_EQ(ours.settings, "--simulate-nodes 3");
}

TEST(SystemList, SettingsAreThoseOfTheCase) {
  const SystemEntry& peer = Find("openmpi5");
  const std::string own = SettingsText(SettingsOf(peer, Transport::kSharedMemory, false));
  EXPECT_EQ(own,
            "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 --oversubscribe --mca pml ob1 --mca btl sm,self "
            "--bind-to core:overload-allowed --mca mpi_yield_when_idle 0");
  const std::string crowded = SettingsText(SettingsOf(peer, Transport::kTcp, true));
  EXPECT_THAT(crowded, HasSubstr("--mca btl tcp,self"));
  EXPECT_THAT(crowded, HasSubstr("--mca mpi_yield_when_idle 1"));
  EXPECT_EQ(SettingsText({}), "its defaults");
}

// Intel MPI would otherwise run collectives through shared memory and be praised for its TCP.
TEST(SystemList, NoPeerUsesSharedMemoryInTheComparisonOverTcp) {
  EXPECT_THAT(SettingsText(SettingsOf(Find("intelmpi"), Transport::kTcp, false)),
              HasSubstr("I_MPI_COLL_INTRANODE=pt2pt"));
  EXPECT_THAT(SettingsText(SettingsOf(Find("mpich5"), Transport::kTcp, false)), HasSubstr("MPIR_CVAR_NOLOCAL=1"));
}

TEST(SystemList, FoldersReplaceTheirMarks) {
  EXPECT_EQ(WithFolders("{peers}/a:{peers}/b", {.bin = "/far"}), "/far/../../peers/a:/far/../../peers/b");
  EXPECT_EQ(WithFolders("{bin}/dlaunch", {.bin = "/far"}), "/far/dlaunch");
  EXPECT_EQ(WithFolders("/usr/bin/mpirun", {.bin = "/far"}), "/usr/bin/mpirun");
}

TEST(SystemList, TheBarePairHasTwoRanks) {
  std::vector<std::string> missing;
  const SessionPlace place{.bin = "/nowhere/a/bin", .memory = "memory", .folder = "folder", .ranks = 4};
  EXPECT_THAT(StartPlansFor(Transport::kTcp, place, &missing), SizeIs(1));
  EXPECT_THAT(missing, Contains("bare (it is two ranks with a CPU each)"));
}

TEST(SystemList, AbsentPeersAreNamedWithWhatHelps) {
  std::vector<std::string> missing;
  const SessionPlace place{.bin = "/nowhere/a/bin", .memory = "memory", .folder = "folder", .ranks = 2};
  EXPECT_THAT(StartPlansFor(Transport::kTcp, place, &missing), SizeIs(1));
  EXPECT_THAT(missing, SizeIs(Systems().size() - 1));
  std::erase_if(missing, [](const std::string& text) { return text.rfind("bare ", 0) == 0; });
  EXPECT_THAT(missing, Each(HasSubstr("tools/dev setup --peers")));
  EXPECT_THAT(missing, Each(Not(HasSubstr("{peers}"))));
  EXPECT_THAT(missing,
              Contains("mpich5 (there is no build/peers/mpich/bin/mpiexec; tools/dev setup --peers installs it, "
                       "tools/dev bench peers builds its program)"));
  // It has no launcher: what is missing is its program.
  EXPECT_THAT(missing, Contains("gloo (there is no program compare_gloo_rank; " + Find("gloo").remedy + ")"));
}

}  // namespace
}  // namespace cohort::collperf
