// Stacks of real Pythons: each version that is installed here, seen from outside.
#include "cohort/launcher/agent/stacks/python_threads.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/launcher/agent/stacks/python_place.h"
#include "cohort/launcher/base/pipe.h"

namespace cohort::launcher {
namespace {

// Its lines count from 1; it says a word when it is about to sleep.
constexpr char kProgram[] = R"(import os, threading, time
class Tägß:
    def wait(self):
        event.wait()

def generate():
    x = [1,
         2]
    yield time.sleep(600)

def sink(n):
    if n:
        return sink(n - 1)
    os.write(1, b'.')
    for _ in generate():
        pass

event = threading.Event()
threading.Thread(target=Tägß().wait, daemon=True).start()
max([1], key=lambda v: sink(2))
)";

std::vector<std::string> Pythons() {
  std::vector<std::string> found = {"/usr/bin/python3"};
  for (const int minor : {8, 9, 10, 11, 12, 13, 14}) {
    found.push_back("/usr/bin/python3." + std::to_string(minor));
    found.push_back("/usr/local/bin/python3." + std::to_string(minor));
  }
  std::error_code error;
  const char* const home = ::getenv("HOME");
  for (std::filesystem::directory_iterator at(std::string(home == nullptr ? "" : home) + "/.pyenv/versions", error),
       end;
       !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("3.") && !name.starts_with("3.6") && !name.starts_with("3.7")) {
      found.push_back(at->path().string() + "/bin/python3");
    }
  }
  std::erase_if(found, [](const std::string& path) { return ::access(path.c_str(), X_OK) != 0; });
  return found;
}

class Child {
 public:
  explicit Child(std::vector<std::string> words) {
    Pipe pipe;
    EXPECT_TRUE(pipe.Open());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(pipe.write_end.get(), 1);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    pipe.write_end.Close();
    char word = 0;
    ready_ = ::read(pipe.read_end.get(), &word, 1) == 1;
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  bool ready() const { return ready_; }

 private:
  pid_t pid_ = -1;
  bool ready_ = false;
};

std::string Line(const PythonFrame& frame) {
  return frame.file + ":" + std::to_string(frame.line) + " " + frame.function;
}

std::vector<std::string> LinesOfMain(pid_t pid, bool main_only) {
  std::vector<std::string> lines;
  for (const PythonThread& thread : ReadPythonThreads(pid, main_only).value_or(std::vector<PythonThread>())) {
    for (const PythonFrame& frame : thread.frames) {
      if (thread.is_main) lines.push_back(Line(frame));
    }
  }
  return lines;
}

TEST(PythonThreads, ThreadsOfEachPythonVersionAreRead) {
  const std::vector<std::string> pythons = Pythons();
  if (pythons.empty()) GTEST_SKIP() << "no Python is installed here";
  const std::vector<std::string> expected = {"<string>:9 generate", "<string>:15 sink",     "<string>:13 sink",
                                             "<string>:13 sink",    "<string>:20 <lambda>", "<string>:20 <module>"};
  for (const std::string& python : pythons) {
    const Child child({python, "-I", "-S", "-X", "utf8", "-c", kProgram});  // whatever it may leave out
    ASSERT_TRUE(child.ready()) << python;
    EXPECT_TRUE(RunsPython(child.pid())) << python;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::vector<std::string> lines;
    do {  // its word comes shortly before it sleeps
      lines = LinesOfMain(child.pid(), true);
    } while (lines != expected && std::chrono::steady_clock::now() < deadline);
    EXPECT_EQ(lines, expected) << python;
    EXPECT_EQ(LinesOfMain(child.pid(), false), expected) << python;
    const auto threads = ReadPythonThreads(child.pid(), false);
    ASSERT_TRUE(threads) << python;
    ASSERT_EQ(threads->size(), 2u) << python;
    const std::vector<PythonFrame>& other = (*threads)[(*threads)[0].is_main ? 1 : 0].frames;
    EXPECT_TRUE(std::any_of(other.begin(), other.end(), [](const auto& frame) {
      return Line(frame) == "<string>:4 wait";
    })) << python;
  }
}

// A callback runs while the collector is at work.
TEST(PythonThreads, GarbageCollectionIsSeen) {
  if (Pythons().empty()) GTEST_SKIP() << "no Python is installed here";
  size_t known = 0;
  for (const std::string& python : Pythons()) {
    const Child sleeps({python, "-I", "-S", "-c", "import os, time\nos.write(1, b'.')\ntime.sleep(600)\n"});
    const Child collects({python, "-I", "-S", "-c",
                          "import gc, os, time\n"
                          "def wait(phase, info):\n  os.write(1, b'.')\n  time.sleep(600)\n"
                          "gc.callbacks.append(wait)\ngc.collect()\n"});
    ASSERT_TRUE(sleeps.ready() && collects.ready()) << python;
    const auto no = PythonWatch::Of(sleeps.pid()), yes = PythonWatch::Of(collects.pid());
    ASSERT_TRUE(no != nullptr && yes != nullptr) << python;
    if (!no->CollectsGarbage().has_value()) continue;
    ++known;
    EXPECT_EQ(no->CollectsGarbage(), false) << python;
    EXPECT_EQ(yes->CollectsGarbage(), true) << python;
    EXPECT_FALSE(yes->Threads(/*main_only=*/true).empty()) << python;
  }
  EXPECT_GT(known, 0u);
}

TEST(PythonThreads, AProcessThatIsNoPythonHasNoPythonThreads) {
  const Child child({"/bin/sh", "-c", "echo; exec sleep 600"});
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(ReadPythonThreads(child.pid(), false), std::nullopt);
  EXPECT_FALSE(RunsPython(child.pid()));
  EXPECT_EQ(ReadPythonThreads(1 << 30, false), std::nullopt) << "no such process";
}

// Frames come and go as they are read: whatever is read, it is what the program has.
TEST(PythonThreads, FramesOfABusyProgramAreThoseThatItHas) {
  if (Pythons().empty()) GTEST_SKIP() << "no Python is installed here";
  const Child child({Pythons().front(), "-c",
                     "import os\ndef a(n): return n and b(n - 1)\ndef b(n): return n and a(n - 1)\n"
                     "os.write(1, b'.')\nwhile True: a(200)\n"});
  ASSERT_TRUE(child.ready());
  size_t most = 0;
  for (int i = 0; i < 300; ++i) {
    const std::vector<std::string> lines = LinesOfMain(child.pid(), true);
    most = std::max(most, lines.size());
    for (const std::string& line : lines) {
      EXPECT_TRUE(line == "<string>:2 a" || line == "<string>:3 b" || line == "<string>:4 <module>" ||
                  line == "<string>:5 <module>")
          << line;
    }
  }
  EXPECT_GT(most, 0u);
}

}  // namespace
}  // namespace cohort::launcher
