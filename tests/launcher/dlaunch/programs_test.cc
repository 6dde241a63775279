// Programs of every kind: those that Python runs, and files that are none, with the reason; and a machine whose
// loopback interface has an address of IPv6 alone.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

class Programs : public ::testing::Test {
 protected:
  // Writes a file that may be executed.
  void Add(const string& name, const string& text) { folder_.AddScript(name, text); }
  string Path(const string& name) const { return folder_.path() + "/" + name; }

  TemporaryFolder folder_;
};

TEST_F(Programs, PythonRunsFoldersAndArchives) {
  std::filesystem::create_directory(Path("app"));
  std::ofstream(Path("app/__main__.py")) << "import os, sys; print('ran', os.environ['RANK'], sys.argv[1:])\n";
  ASSERT_EQ(std::system(("cd " + folder_.path() + " && python3 -m zipapp app && cp app.pyz app.zip").c_str()), 0);
  for (const char* const name : {"app", "./app", "app.pyz", "./app.zip"}) {
    DlaunchProcess job({"-n", "1", name, "--lr", "1"}, {.working_directory = folder_.path()});
    EXPECT_EQ(job.Wait(), 0) << name << job.err();
    EXPECT_EQ(job.out(), "[0] ran 0 ['--lr', '1']\n") << name;
  }
}

TEST_F(Programs, FilesThatAreNoProgramAreNamed) {
  string foreign(4096, '\0');
  std::ifstream("/proc/self/exe", std::ios::binary).read(foreign.data(), static_cast<long>(foreign.size()));
  foreign[18] = static_cast<char>(foreign[18] == 22 ? 21 : 22);  // the processor: s390
  const std::tuple<const char*, string, int, const char*> cases[] = {
      {"windows", "#!/bin/sh\r\necho\r\n", 126, "carriage return"},
      {"env", "#!/usr/bin/env python3\r\nprint()\r\n", 126, "dos2unix"},
      {"gone", "#!/no/such/python\nx\n", 127, "names the interpreter /no/such/python, which is not there"},
      {"bare", "echo hello\n", 126, "a script needs a first line such as #!/bin/sh"},
      {"marked", "\xEF\xBB\xBF#!/bin/sh\n", 126, "byte order mark"},
      {"empty", "", 126, "it is empty"},
      {"foreign", foreign, 126, "it is built for "},
      {"exe", "MZ\x90", 126, "a program for Windows"}};
  for (const auto& [name, text, status, words] : cases) {
    Add(name, text);
    DlaunchProcess job({"-n", "2", Path(name)});
    EXPECT_EQ(job.Wait(), status) << name << ": " << job.err();
    EXPECT_NE(job.err().find(words), string::npos) << name << ": " << job.err();
  }
  Add("run.sh", "echo\n");
  ASSERT_EQ(::chmod(Path("run.sh").c_str(), 0644), 0);
  DlaunchProcess job({Path("run.sh")});
  EXPECT_EQ(job.Wait(), 126) << job.err();
  EXPECT_NE(job.err().find("first: bash " + Path("run.sh")), string::npos) << job.err();
}

TEST_F(Programs, ProgramsMeetOnALoopbackInterfaceOfIPv6Alone) {
  const auto enter = [] {
    return ::unshare(CLONE_NEWNET) == 0 &&
           std::system(
               "ip link set lo up && ip address delete 127.0.0.1/8 dev lo && ip address show dev lo | grep -q "
               "::1/128") == 0;
  };
  const vector<vector<string>> ways = {{"-n", "2"}, {"--simulate-nodes", "2"}};
  for (vector<string> arguments : ways) {
    for (const char* const word : {"--", "python3", "-c",
                                   "import os, socket\n"
                                   "place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
                                   "if os.environ['RANK'] == '0': socket.create_server(place, family=socket.AF_INET6)\n"
                                   "print(place[0])"}) {
      arguments.emplace_back(word);
    }
    DlaunchProcess job(arguments, {.enter = enter});
    const int status = job.Wait();
    if (status == kNotPermitted) GTEST_SKIP() << "no such network namespace may be made here";
    EXPECT_EQ(status, 0) << job.err();
    EXPECT_NE(job.out().find("[0] ::1\n"), string::npos) << job.out();
    EXPECT_NE(job.out().find("[1] ::1\n"), string::npos) << job.out();
  }
}

}  // namespace
}  // namespace cohort::launcher
