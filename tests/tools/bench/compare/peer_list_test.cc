#include "tools/bench/compare/peer_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tools/bench/compare/specs.h"
#include "tools/measure/session_memory.h"

namespace cohort::bench {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const Peer& Find(const std::string& name) {
  for (const Peer& peer : Peers()) {
    if (peer.name == name) return peer;
  }
  ADD_FAILURE() << "there is no peer " << name;
  return Peers().front();
}

TEST(PeerList, NamesAreDifferentAndAllSystemsHaveASlot) {
  std::set<std::string> names;
  for (const Peer& peer : Peers()) {
    names.insert(peer.name);
    EXPECT_FALSE(peer.program.empty() || peer.remedy.empty()) << peer.name;
  }
  EXPECT_THAT(names, SizeIs(Peers().size()));
  EXPECT_LE(names.size() + 1, size_t{measure::kMostSystems});
  EXPECT_THAT(PeerNames(), HasSubstr("mpich5, intelmpi"));
}

TEST(PeerList, SettingsAreThoseOfTheCase) {
  const Peer& peer = Find("openmpi5");
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
TEST(PeerList, NoPeerUsesSharedMemoryInTheComparisonOverTcp) {
  EXPECT_THAT(SettingsText(SettingsOf(Find("intelmpi"), Transport::kTcp, false)),
              HasSubstr("I_MPI_COLL_INTRANODE=pt2pt"));
  EXPECT_THAT(SettingsText(SettingsOf(Find("mpich5"), Transport::kTcp, false)), HasSubstr("MPIR_CVAR_NOLOCAL=1"));
}

TEST(PeerList, TheFolderOfThePeersReplacesItsMark) {
  EXPECT_EQ(WithFolder("{peers}/a:{peers}/b", "/far"), "/far/a:/far/b");
  EXPECT_EQ(WithFolder("/usr/bin/mpirun", "/far"), "/usr/bin/mpirun");
}

TEST(PeerList, TheBarePairHasTwoRanks) {
  std::vector<std::string> missing;
  const SessionPlace place{.bin = "/nowhere/a/bin", .memory = "memory", .folder = "folder", .ranks = 4};
  EXPECT_THAT(SystemsFor(Transport::kTcp, place, &missing), SizeIs(1));
  EXPECT_THAT(missing, Contains("bare (it is two ranks with a CPU each)"));
}

TEST(PeerList, AbsentPeersAreNamedWithWhatHelps) {
  std::vector<std::string> missing;
  const SessionPlace place{.bin = "/nowhere/a/bin", .memory = "memory", .folder = "folder", .ranks = 2};
  EXPECT_THAT(SystemsFor(Transport::kTcp, place, &missing), SizeIs(1));
  EXPECT_THAT(missing, SizeIs(Peers().size()));
  std::erase_if(missing, [](const std::string& text) { return text.rfind("bare ", 0) == 0; });
  EXPECT_THAT(missing, Each(HasSubstr("tools/dev setup --peers")));
  EXPECT_THAT(missing, Each(Not(HasSubstr("{peers}"))));
  EXPECT_THAT(missing,
              Contains("mpich5 (there is no build/peers/mpich/bin/mpiexec; tools/dev setup --peers installs it)"));
}

}  // namespace
}  // namespace cohort::bench
