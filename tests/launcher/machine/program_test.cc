#include "cohort/launcher/machine/program.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "cohort/launcher/machine/program_file.h"

namespace cohort::launcher {
namespace {

class FindProgramTest : public testing::Test {
 protected:
  FindProgramTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "program-test-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    for (const char* folder : {"first", "second", "here", "own"})
      std::filesystem::create_directory(root_ + "/" + folder);
  }
  ~FindProgramTest() override { std::filesystem::remove_all(root_); }
  void Add(const std::string& path, mode_t mode = 0755, const std::string& text = "#!/bin/sh\n") {
    std::ofstream(root_ + "/" + path) << text;
    ::chmod((root_ + "/" + path).c_str(), mode);
  }
  absl::StatusOr<Program> Find(const std::string& name) {
    return FindProgram(name, root_ + "/first:" + root_ + "/second", root_ + "/here", root_ + "/own");
  }
  std::string root_;
};

TEST_F(FindProgramTest, LooksInPathThenHereThenBesideDlaunch) {
  Add("own/train");
  EXPECT_EQ(Find("train")->path, root_ + "/own/train");
  EXPECT_EQ(Find("train")->where, "beside dlaunch");
  Add("here/train");
  EXPECT_EQ(Find("train")->path, root_ + "/here/train");
  Add("second/train");
  EXPECT_EQ(Find("train")->path, root_ + "/second/train");
  EXPECT_EQ(Find("train")->where, "in PATH");
  Add("first/train");
  EXPECT_EQ(Find("train")->path, root_ + "/first/train");
}

TEST_F(FindProgramTest, NamesWithASlashAreRelativeToTheWorkingDirectory) {
  Add("here/train");
  EXPECT_EQ(Find("./train")->path, root_ + "/here/train");
  EXPECT_EQ(Find(root_ + "/here/train")->path, root_ + "/here/train");
  EXPECT_EQ(Find("./other").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FindProgramTest, RefusesPathsThatAreNoFile) {
  ASSERT_EQ(::mkfifo((root_ + "/here/train").c_str(), 0755), 0);
  const absl::Status status = Find("./train").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(), root_ + "/here/train is a pipe, not a program");
  for (const char* const name : {".", ".."}) {
    EXPECT_EQ(Find(name).status().message(),
              "'" + std::string(name) + "' is a folder, not a program; name a program in it");
  }
}

TEST_F(FindProgramTest, SaysHowAFileThatIsNotExecutableIsStarted) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run.sh", "echo\n", "name its interpreter first: bash ./run.sh"},
      {"job", "#!/usr/bin/env python3\n", "first: python3 ./job"},
      {"old", "#! /usr/bin/perl -w\n", "first: perl -w ./old"},
      {"plot.R", "x\n", "Rscript ./plot.R"},
      {"train.ipynb", "{}\n", "jupyter nbconvert --to script ./train.ipynb"},
      {"train.cu", "int main\n", "source code; compile it first"},
      {"notes", "x\n", "chmod +x"}};
  for (const auto& [name, text, words] : cases) {
    Add(std::string("here/") + name, 0644, text);
    const absl::Status status = Find(std::string("./") + name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << name;
    EXPECT_NE(status.message().find("is not executable"), std::string::npos) << status;
    EXPECT_NE(status.message().find(words), std::string::npos) << status;
  }
}

TEST_F(FindProgramTest, RefusesScriptsWithTheLineEndsOfWindows) {
  for (const char* const text : {"#!/bin/sh\r\necho\r\n", "#!/usr/bin/env python3\r\n", "#!/bin/sh -e\r"}) {
    Add("here/run", 0755, text);
    const absl::Status status = Find("./run").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << text;
    EXPECT_NE(status.message().find("carriage return"), std::string::npos) << status;
    EXPECT_NE(status.message().find("dos2unix"), std::string::npos) << status;
  }
  Add("here/run", 0755, "#!/bin/sh\necho x\r\n");
  EXPECT_TRUE(Find("./run").ok()) << "the interpreter sees to it";
}

TEST_F(FindProgramTest, SuggestsSimilarNames) {
  Add("here/train.py", 0644);
  EXPECT_NE(Find("./train").status().message().find("did you mean ./train.py?"), std::string::npos);
  EXPECT_NE(Find("train").status().message().find("did you mean train.py?"), std::string::npos);
  EXPECT_NE(Find("python3 train.py").status().message().find("Leave its quotes out"), std::string::npos);
  EXPECT_NE(Find("OMP_NUM_THREADS=2").status().message().find("--env OMP_NUM_THREADS=VALUE"), std::string::npos);
  EXPECT_NE(Find("C:\\work\\train").status().message().find("a path has slashes here"), std::string::npos);
}

TEST_F(FindProgramTest, ReadsFromTheFileWhyItCanNotRun) {
  const auto trouble = [&](const std::string& text) {
    Add("here/file", 0755, text);
    return TroubleWithProgram(root_ + "/here/file");
  };
  EXPECT_EQ(trouble(""), "it is empty");
  EXPECT_EQ(trouble("echo hello\n"), "a script needs a first line such as #!/bin/sh");
  EXPECT_EQ(trouble("#!/no/such/python\n"), "its first line names the interpreter /no/such/python, which is not there");
  EXPECT_EQ(trouble("#!/etc/passwd\n"), "its first line names the interpreter /etc/passwd, which may not be executed");
  EXPECT_EQ(trouble("#!\n"), "its first line, #!, names no interpreter");
  EXPECT_EQ(trouble("#!/bin/sh\n"), "");
  EXPECT_NE(trouble("\xEF\xBB\xBF#!/bin/sh\n").find("byte order mark"), std::string::npos);
  EXPECT_NE(trouble("MZ\x90").find("for Windows"), std::string::npos);
  EXPECT_NE(trouble("PK\x03\x04").find("python3 FILE"), std::string::npos);
  EXPECT_EQ(trouble("\x7f"
                    "ELF"),
            "it is cut off: build or copy it again");
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string program(4096, '\0');
  self.read(program.data(), static_cast<std::streamsize>(program.size()));
  EXPECT_EQ(trouble(program), "");
  program[offsetof(Elf64_Ehdr, e_machine)] =
      static_cast<char>(program[offsetof(Elf64_Ehdr, e_machine)] == EM_S390 ? EM_PPC64 : EM_S390);
  EXPECT_NE(trouble(program).find(", and this machine is "), std::string::npos) << trouble(program);
}

TEST_F(FindProgramTest, PassesOverFilesThatCanNotBeExecuted) {
  Add("first/train", 0644);
  std::filesystem::create_directory(root_ + "/second/train");
  EXPECT_EQ(Find("train").status().code(), absl::StatusCode::kPermissionDenied);
  Add("own/train");
  EXPECT_EQ(Find("train")->path, root_ + "/own/train");
}

TEST_F(FindProgramTest, NamesThePlacesWhereItHasLooked) {
  const absl::Status status = Find("train").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(status.message()).find(root_ + "/own"), std::string::npos) << status;
  EXPECT_EQ(FindProgram("train", root_ + "/first", root_ + "/here", "").status().message(),
            "there is no program 'train' in PATH or in the working directory (" + root_ + "/here); give its path");
}

TEST_F(FindProgramTest, AnEmptyEntryOfPathIsTheWorkingDirectory) {
  Add("here/train");
  EXPECT_EQ(FindProgram("train", ":" + root_ + "/first", root_ + "/here", root_ + "/own")->where, "in PATH");
}

}  // namespace
}  // namespace cohort::launcher
