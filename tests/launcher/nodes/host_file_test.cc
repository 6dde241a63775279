// Host files as other launchers and schedulers write them: each form means here what it means there.
#include "cohort/launcher/nodes/host_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

string Hosts(const string& text) {
  const auto file = ParseHostFile(text, "hosts.txt");
  if (!file.ok()) return string(file.status().message());
  string words;
  for (const HostEntry& entry : file->hosts) {
    words += (words.empty() ? "" : " ") + entry.host + (entry.slots ? "=" + std::to_string(*entry.slots) : "");
  }
  return words;
}

TEST(HostFile, AFileHasAHostALine) {
  EXPECT_EQ(Hosts("# the rack\na\n\nb:4   # big\nc slots=8\nn[1-2] slots=3\r\n"), "a b=4 c=8 n1=3 n2=3");
  EXPECT_EQ(Hosts("a,b:2"), "a b=2");
}

TEST(HostFile, TakesTheFormsOfOtherLaunchers) {
  const std::pair<const char*, const char*> cases[] = {
      // Open MPI
      {"a slots=4 max_slots=8\nb slots=2 max-slots=2 # full\n", "a=4 b=2"},
      {"a max_slots=2\n", "a=2"},
      {"a slots = 4\nb slots= 4\nc slots =4\nd\tslots\t=\t4\n", "a=4 b=4 c=4 d=4"},
      {"a count=2\nb cpu=3\nc cpus=4 slots_max=5\n", "a=2 b=3 c=4"},
      {"a username=ann slots=2\nbob@b slots=1\n", "ann@a=2 bob@b=1"},
      {"fd00::1 slots=2\n[fd00::2]:3\n10.0.0.1 slots=1", "fd00::1=2 fd00::2=3 10.0.0.1=1"},
      // MPICH, Intel MPI
      {"a:4 binding=user:0-3 user=ann ifname=ib0\nb:2\n", "ann@a=4 b=2"},
      {"a:2\nb:2\na:3\n", "a=5 b=2"},
      // PBS, LSF, Slurm
      {"a\na\nb\nb\nb\n", "a=2 b=3"},
      {"a\nb\na\nb\na\n", "a=3 b=2"},
      {"n[1-3,5]\n", "n1 n2 n3 n5"},
      {"n1*3\nn[2-3]*2\n", "n1=3 n2=2 n3=2"},
      // DeepSpeed
      {"worker-1 slots=4\nworker-2 slots=4\n", "worker-1=4 worker-2=4"},
      // Grid Engine
      {"a.site 4 all.q@a.site UNDEFINED\nb.site 2 all.q@b.site <NULL>\na.site 1 long.q UNDEFINED\n",
       "a.site=5 b.site=2"},
      {"a 4\nb 2\n", "a=4 b=2"},
      // of whatever editor and system
      {"\xEF\xBB\xBF"
       "a slots=2\r\nb slots=3\t \r\n\r\n",
       "a=2 b=3"},
      {"  a   slots=2   # the first\n\t# none\n\n b\n", "a=2 b"},
  };
  for (const auto& [text, hosts] : cases) EXPECT_EQ(Hosts(text), hosts) << text;
}

TEST(HostFile, ReportsKeysThatChangeNothing) {
  const auto file = ParseHostFile("a:4 binding=user:0,1 ifname=ib0\nb:4 binding=rr\n", "hosts.txt");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->idle_keys, (vector<string>{"binding", "ifname"}));
}

TEST(HostFile, NamesTheLineThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\nb slotz=4\n", "line 2: 'slotz' is not known"},
      {"a slots=4 port=22\n", "ssh -p PORT"},
      {"a slots=0\n", "leave the host out"},
      {"a slots=x\n", "give a number of ranks"},
      {"a slots=4000\n", "give a number of ranks"},
      {"a slots=\n", "slots= has no value"},
      {"a slots=2 slots=3\n", "slots= is there twice"},
      {"a slots=8 max_slots=4\n", "slots=8 is above max_slots=4"},
      {"a:2 slots=3\n", "'a:2' has two numbers"},
      {"ann@a user=bob\n", "two users"},
      {"a user=-oProxyCommand\n", "can't be a user"},
      {"a b c\n", "'b' is not known"},
      {"a 2 q UNDEFINED more\n", "'more' is not known"},
      {"a 0,2,4\n", "'0,2,4' is not known"},
      {"=4\n", "no host before"},
      {"slots=4\n", "no host before"},
      {"+n0\n", "counts nodes of an allocation"},
      {"^a\n", "leaves a host out"},
      {"rank 0=a slot=1\n", "rank file"},
      {"a:*\n", "number of ranks"},
      {"-oProxyCommand=x\n", "no host before"},
      {"-oProxyCommand\n", "option"},
      {"# none\n\n", "no hosts in it"},
      {"\xFF\xFE"
       "a",
       "UTF-16"},
  };
  for (const auto& [text, words] : cases) {
    const string said = Hosts(text);
    EXPECT_EQ(said.find("hosts.txt"), 0u) << text << ": " << said;
    EXPECT_NE(said.find(words), string::npos) << text << ": " << said;
  }
  string many;
  for (int i = 0; i < 1025; ++i) many += "a\n";
  EXPECT_NE(Hosts(many).find("line 1025: host 'a' stands there for more than 1024 ranks"), string::npos) << Hosts(many);
}

}  // namespace
}  // namespace cohort::launcher
