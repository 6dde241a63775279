// `dlaunch why`: real jobs with a rank that is slow in a known way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "nlohmann/json.hpp"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using nlohmann::json;
using std::string;
using ::testing::AnyOf;
using ::testing::HasSubstr;
constexpr int kLooks = 4;

class Why : public testing::Test {
 protected:
  // Two simulated nodes of two ranks, with these arguments of why_ranks.
  static std::vector<string> Command(const std::vector<string>& options, const std::vector<string>& arguments) {
    std::vector<string> command = {"--simulate-nodes", "2", "--nproc-per-node", "2", "--stopped", "wait"};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", COHORT_WHY_RANKS});
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  static string IdOf(DlaunchProcess* job) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(job->WaitForOutput("[" + std::to_string(rank) + "] up")) << job->err();
    }
    return JobOf(job);
  }
  static string JobOf(DlaunchProcess* job) {
    const string name = string(1, '\0') + "COHORT_JOB_ID=";
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < limit) {
      const string environment = ReadProcessEnvironment(job->RankProcess(0));
      if (const size_t at = environment.find(name); at != string::npos) return environment.c_str() + at + name.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a bounded poll: in an exec it has none
    }
    ADD_FAILURE() << "rank 0 has no job's name in its environment";
    return "";
  }
  static json Ask(const std::vector<string>& words) {
    std::vector<string> command = {"why", "--json"};
    command.insert(command.end(), words.begin(), words.end());
    DlaunchProcess why(command);
    EXPECT_EQ(why.Wait(), 0) << why.err();
    return json::parse(why.out(), nullptr, /*allow_exceptions=*/false);
  }
  static bool Blames(const json& found, int rank) {
    return found.contains("culprit") && found["culprit"]["ranks"] == json::array({rank});
  }

  static bool Gives(const json& found, const std::vector<string>& activities) {
    const string activity = found["culprit"]["reason"]["activity"];
    return std::find(activities.begin(), activities.end(), activity) != activities.end();
  }
  static constexpr const char* kUnknown = "is in an unknown state";
  static constexpr const char* kNoCpu = "waits for a CPU";
  // Looks at a running job until it says so. Beside other programs all ranks may be late at once, in calls too, a slow
  // step lasts until the look ends, or there are too few samples of it. These looks tell little, but none may name
  // another rank, or another reason than a CPU that is busy.
  static void LookFor(const string& id, int rank, const string& verdict, const std::vector<string>& activities,
                      json* found) {
    for (int look = 0; look < kLooks; ++look) {
      *found = Ask({"--for", "4s", id});
      const bool named = found->contains("culprit") && !(*found)["culprit"]["ranks"].empty();
      ASSERT_TRUE(!named || Blames(*found, rank)) << found->dump(1);
      if (!named || (*found)["verdict"] != verdict) continue;
      if (Gives(*found, activities)) return;
      ASSERT_TRUE(Gives(*found, {kUnknown, kNoCpu})) << found->dump(1);
    }
  }

  // A running job whose rank 2 is slow in that way now and then, and in every step: by so much that whatever else the
  // machine does is little beside it.
  static void ExpectNamed(const string& kind, const std::vector<string>& activities) {
    for (const string when : {"some", "every"}) {
      DlaunchProcess job(Command({}, {"replicas", kind, "2", when, when == "some" ? "900" : "300", "0"}));
      const string id = IdOf(&job);
      ASSERT_TRUE(job.WaitForOutput("[2] slow"));
      const string expected = when == "some" ? "slow step" : "every step";
      json found;
      ASSERT_NO_FATAL_FAILURE(LookFor(id, 2, expected, activities, &found)) << kind << " " << when;
      ASSERT_TRUE(Blames(found, 2)) << kind << " " << when << "\n" << found.dump(1);
      EXPECT_THAT(found["verdict"].get<string>(), AnyOf(expected, "waits now", "all of it")) << found.dump(1);
      EXPECT_TRUE(Gives(found, activities)) << found.dump(1);
      ::kill(job.pid(), SIGTERM);
      job.Wait();
    }
  }
  // The first open file of a process whose name holds `text`; empty: none.
  static string OpenFileOf(pid_t process, const string& text) {
    std::error_code error;
    const string folder = "/proc/" + std::to_string(process) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (target.find(text) != string::npos) return target;
    }
    return "";
  }
  // Whether a process has a trace open that has no name any more.
  static bool HasNamelessTrace(pid_t process) { return !OpenFileOf(process, "job.pftrace (deleted)").empty(); }

  TemporaryFolder folder_;
  const string path_ = folder_.path() + "/job.pftrace";
};

// Beside other programs it is ready to run for longer than it runs.
TEST_F(Why, NamesARankThatComputes) { ExpectNamed("compute", {"computes", "waits for a CPU"}); }

TEST_F(Why, NamesARankThatIsStopped) { ExpectNamed("stop", {"is stopped"}); }

TEST_F(Why, NamesARankThatReads) { ExpectNamed("read", {"reads"}); }

TEST_F(Why, NamesARankThatWaitsForALock) { ExpectNamed("lock", {"waits for a lock"}); }

TEST_F(Why, NamesTheStageOfAPipeline) {
  DlaunchProcess job(Command({}, {"pipeline", "sleep", "1", "every", "300", "0"}));
  const string id = IdOf(&job);
  ASSERT_TRUE(job.WaitForOutput("[1] slow"));
  json found;
  ASSERT_NO_FATAL_FAILURE(LookFor(id, 1, "every step", {"sleeps"}, &found));
  ASSERT_TRUE(Blames(found, 1)) << found.dump(1);
  EXPECT_EQ(found["verdict"], "every step");
  EXPECT_EQ(found["culprit"]["reason"]["activity"], "sleeps");
  EXPECT_THAT(found["culprit"]["site"].get<string>(), HasSubstr("why_ranks.cc:"));
}

TEST_F(Why, TellsWhoIsWaitedForNow) {
  DlaunchProcess job(Command({}, {"replicas", "sleep", "3", "20", "3600000", "0"}));
  const string id = IdOf(&job);
  ASSERT_TRUE(job.WaitForOutput("[3] slow"));
  const json found = Ask({"--for", "3s", id});
  ASSERT_EQ(found["verdict"], "waits now") << found.dump(1);
  ASSERT_TRUE(Blames(found, 3)) << found.dump(1);
  EXPECT_EQ(found["culprit"]["waiting"], json::array({0, 1, 2}));
  EXPECT_EQ(found["culprit"]["reason"]["activity"], "sleeps");
  DlaunchProcess words({"why", "--for", "500ms", id});
  EXPECT_EQ(words.Wait(), 0) << words.err();
  EXPECT_THAT(words.out(), HasSubstr("ranks 0-2 have waited "));
  EXPECT_THAT(words.out(),
              HasSubstr(" for rank 3 (node1)\n  where: before all_reduce(max, float32, 16) at why_ranks.cc:"));
}

// The calls in which the others wait have not ended, and the trace has no slices of them yet.
TEST_F(Why, TellsWhoIsWaitedForNowBesideATrace) {
  DlaunchProcess job(Command({"--trace", path_}, {"replicas", "sleep", "3", "20", "3600000", "0"}));
  const string id = IdOf(&job);
  ASSERT_TRUE(job.WaitForOutput("[3] slow"));
  for (const std::vector<string>& words : {std::vector<string>{"--for", "5s", id}, std::vector<string>{id}}) {
    const json found = Ask(words);
    ASSERT_EQ(found["verdict"], "waits now") << found.dump(1);
    ASSERT_TRUE(Blames(found, 3)) << found.dump(1);
    EXPECT_EQ(found["culprit"]["waiting"], json::array({0, 1, 2}));
    EXPECT_GT(found["culprit"]["waited_seconds"], 3.0);
  }
}

TEST_F(Why, NamesARankThatHasNotJoined) {
  const string late = "if [ \"$RANK\" = 3 ]; then echo late; sleep 600; fi; exec \"$@\"";
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "2", "--", "sh", "-c", late, "sh", COHORT_WHY_RANKS,
                      "replicas", "none", "0", "0", "0", "0"});
  for (const string up : {"[0] up", "[1] up", "[2] up", "[3] late"}) ASSERT_TRUE(job.WaitForOutput(up)) << job.err();
  const json found = Ask({"--for", "3s", JobOf(&job)});
  ASSERT_EQ(found["verdict"], "waits now") << found.dump(1);
  ASSERT_TRUE(Blames(found, 3)) << found.dump(1);
  EXPECT_EQ(found["culprit"]["waiting"], json::array({0, 1, 2}));
  EXPECT_EQ(found["culprit"]["nodes"], json::array({"node1"}));
  ASSERT_EQ(found["culprit"]["unjoined"].size(), 1u) << found.dump(1);
  const json its = found["culprit"]["unjoined"][0];
  EXPECT_GT(its["pid"], 0);
  EXPECT_THAT(its["doing"].dump(), HasSubstr("sh sleeps in ")) << found.dump(1);
  EXPECT_THAT(found["lines"][0].get<string>(), HasSubstr("rank 3 has not joined the job yet: "));
  for (const json& line : found["lines"]) {
    EXPECT_EQ(line.get<string>().find("sure"), string::npos) << "nothing is judged beside that";
  }
}

TEST_F(Why, SaysHowShortALookBesideATraceWas) {
  DlaunchProcess job(Command({}, {"replicas", "none", "0", "0", "0", "0"}));
  const string id = IdOf(&job);
  DlaunchProcess trace({"trace", "--for", "8s", "--output", path_, id});
  ASSERT_TRUE(trace.WaitUntil([this] {
    std::error_code error;
    return std::filesystem::file_size(path_, error) > 0 && !error;
  }));
  DlaunchProcess why({"why", "--for", "30s", id});
  EXPECT_EQ(why.Wait(), 0) << why.err();
  EXPECT_EQ(trace.Wait(), 0) << trace.err();
  EXPECT_THAT(why.out(), ::testing::ContainsRegex("the look was [0-9.]+ s long, not 30.00 s: the trace that was being "
                                                  "taken, or the job, has ended\n"));
}

TEST_F(Why, LeavesNoLineInTheOutputOfTheJob) {
  DlaunchProcess job(Command({}, {"replicas", "none", "0", "0", "0", "0"}));
  const string id = IdOf(&job);
  Ask({"--for", "300ms", id});
  ::kill(job.pid(), SIGTERM);
  job.Wait();
  EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("dlaunch-why")));
}

TEST_F(Why, LeavesNothingBehindHoweverItEnds) {
  DlaunchProcess job(Command({}, {"replicas", "none", "0", "0", "0", "0"}));
  const string id = IdOf(&job);
  {
    DlaunchProcess why({"why", "--for", "1h", id}, {.environment = {"TMPDIR=" + folder_.path()}});
    ASSERT_TRUE(why.WaitUntil([&why] { return HasNamelessTrace(why.pid()); }));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    DlaunchProcess second({"why", id});
    EXPECT_EQ(second.Wait(), 1);
    EXPECT_THAT(second.err(), HasSubstr("another dlaunch why looks at this job"));
    EXPECT_THAT(second.err(), HasSubstr("[trace-taken]"));
    ::kill(why.pid(), SIGKILL);
    why.Wait();
  }
  // It waits for the end of the trace that nobody wants any more.
  DlaunchProcess next({"why", "--for", "500ms", id});
  EXPECT_EQ(next.Wait(), 0) << next.err();
}

TEST_F(Why, ReadsATrace) {
  DlaunchProcess job(Command({"--trace", path_}, {"replicas", "read", "1", "25", "400", "60"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const json found = Ask({path_});
  EXPECT_EQ(found["trace"], path_);
  EXPECT_EQ(found["steps"]["source"], "calls");
  EXPECT_GE(found["steps"]["count"], 50);
  ASSERT_EQ(found["verdict"], "slow step") << found.dump(1);
  EXPECT_EQ(found["culprit"]["ranks"], json::array({1}));
  EXPECT_EQ(found["culprit"]["reason"]["activity"], "reads");
  EXPECT_THAT(found["culprit"]["reason"]["object"].get<string>(), HasSubstr("read of pipe:["));
  const int step = found["step"]["number"];
  EXPECT_THAT(step, AnyOf(24, 25, 26));
  const json asked = Ask({"--step", std::to_string(step), path_});
  EXPECT_EQ(asked["culprit"]["ranks"], json::array({1})) << asked.dump(1);
  DlaunchProcess none({"why", "--step", "4711", path_});
  EXPECT_EQ(none.Wait(), 1);
  EXPECT_THAT(none.err(), HasSubstr("there is no step 4711; give one from 1 to "));
  EXPECT_THAT(none.err(), HasSubstr("[no-such-step]"));
}

TEST_F(Why, NamesTheRankThatADeadlineAwaited) {
  DlaunchProcess job(Command({"--trace", path_}, {"replicas", "sleep", "3", "20", "3600000", "0", "10000"}));
  EXPECT_NE(job.Wait(), 0);
  const json found = Ask({path_});
  ASSERT_EQ(found["verdict"], "waits now") << found.dump(1);
  ASSERT_TRUE(Blames(found, 3)) << found.dump(1);
  EXPECT_EQ(found["culprit"]["waiting"], json::array({0, 1, 2}));
  EXPECT_EQ(found["culprit"]["reason"]["activity"], "sleeps");
}

TEST_F(Why, ReadsTheTraceThatIsBeingTaken) {
  DlaunchProcess job(Command({"--trace", path_}, {"replicas", "sleep", "0", "every", "200", "0"}));
  const string id = IdOf(&job);
  ASSERT_TRUE(job.WaitForOutput("[0] slow"));
  const json found = Ask({"--for", "4s", id});
  EXPECT_TRUE(Blames(found, 0)) << found.dump(1);
  EXPECT_GT(found["steps"]["count"], 8);
  EXPECT_LT(found["seconds"], 6.0) << "the time that was asked for is judged";
}

// A look beside a trace, and one of its own.
TEST_F(Why, ALookEndsWithTheJob) {
  for (const std::vector<string>& options : {std::vector<string>{"--trace", path_}, std::vector<string>{}}) {
    DlaunchProcess job(Command(options, {"replicas", "none", "0", "0", "0", "0"}));
    const string id = IdOf(&job);
    DlaunchProcess why({"why", "--json", "--for", "1h", id});
    // One connection to the job that stays is that of the look: those before it are short.
    string connection;
    auto since = std::chrono::steady_clock::now();
    ASSERT_TRUE(why.WaitUntil([&] {
      const string now = OpenFileOf(why.pid(), "socket:");
      if (now != connection) since = std::chrono::steady_clock::now();
      connection = now;
      return !now.empty() && std::chrono::steady_clock::now() - since > std::chrono::milliseconds(3000);
    })) << why.err();
    ::kill(job.pid(), SIGTERM);
    EXPECT_EQ(job.Wait(), 143);
    EXPECT_EQ(why.Wait(), 0) << why.err();
    const json found = json::parse(why.out(), nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(found.is_discarded()) << why.out();
    EXPECT_GT(found["calls"], 0);
    EXPECT_EQ(found.value("asked_seconds", 0.0), 3600) << found.dump(1);
    EXPECT_GT(found.value("look_seconds", 0.0), 1) << found.dump(1);
  }
}

TEST_F(Why, RefusesWhatItCannotRead) {
  {
    std::ofstream(folder_.path() + "/text.pftrace") << "no trace";
    DlaunchProcess job(Command({"--trace", path_}, {"replicas", "none", "0", "0", "0", "50"}));
    ASSERT_EQ(job.Wait(), 0) << job.err();
    std::ifstream in(path_, std::ios::binary);
    string bytes{std::istreambuf_iterator<char>(in), {}};
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
    std::ofstream(folder_.path() + "/damaged.pftrace", std::ios::binary) << bytes;
  }
  struct Case {
    std::vector<string> words;
    int status;
    string says;
  };
  for (const Case& c :
       {Case{{"job-zz"}, 1, "[no-such-job]"}, Case{{folder_.path() + "/none.pftrace"}, 1, "no trace can be read: "},
        Case{{folder_.path() + "/text.pftrace"}, 1, "[no-trace]"},
        Case{{folder_.path() + "/damaged.pftrace"}, 1, "[trace-damaged]"},
        Case{{"--step", "x", path_}, 2, "--step 'x': give the number of a step"},
        Case{{"--for", "0"}, 2, "[look-time]"}, Case{{"--for", "1s", path_}, 2, "--for is for a job that runs"}}) {
    std::vector<string> words = {"why"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    DlaunchProcess why(words);
    EXPECT_EQ(why.Wait(), c.status) << c.says;
    EXPECT_THAT(why.err(), HasSubstr(c.says));
  }
}

TEST_F(Why, AJobWithoutCallsIsToldSo) {
  DlaunchProcess job({"-n", "1", "sh", "-c", "echo up; exec sleep 600"});
  ASSERT_TRUE(job.WaitForOutput("up"));
  DlaunchProcess why({"why", "--for", "200ms", JobOf(&job)});
  EXPECT_EQ(why.Wait(), 1);
  EXPECT_THAT(why.err(), HasSubstr("has made no calls that Cohort sees"));
  EXPECT_THAT(why.err(), HasSubstr("[no-calls]"));
}

}  // namespace
}  // namespace cohort::launcher
