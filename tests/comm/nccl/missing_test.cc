// Libraries that are missing or too old are named, with the remedy. In a binary of its own: the first library that
// loads is kept for the life of a process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "cohort/comm/nccl/nccl_provider.h"

namespace cohort::comm {
namespace {

// In a process of its own, since the first library that loads is kept.
std::string ErrorWith(const NcclOptions& options) {
  int pipes[2];
  if (pipe(pipes) != 0) return "pipe";
  const pid_t pid = fork();
  if (pid == 0) {
    const GroupContext group;
    const absl::Status status = MakeNcclProvider(&group, options).status();
    const std::string text = status.ToString();
    (void)!write(pipes[1], text.data(), text.size());
    _exit(0);
  }
  close(pipes[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t got = 0; (got = read(pipes[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(pipes[0]);
  waitpid(pid, nullptr, 0);
  return text;
}

TEST(NcclMissing, LibraryAndFunctionAreNamedWithTheRemedy) {
  const std::string no_library = ErrorWith({"/nowhere/libnccl.so.2", COHORT_FAKE_NCCL, "", nullptr});
  EXPECT_NE(no_library.find("UNIMPLEMENTED"), std::string::npos) << no_library;
  EXPECT_NE(no_library.find("COHORT_NCCL_LIBRARY"), std::string::npos) << no_library;
  const std::string incomplete = ErrorWith({COHORT_FAKE_NCCL_INCOMPLETE, COHORT_FAKE_NCCL, "", nullptr});
  EXPECT_NE(incomplete.find("has no function ncclGetUniqueId"), std::string::npos) << incomplete;
  const std::string old = ErrorWith({COHORT_FAKE_NCCL_OLD, COHORT_FAKE_NCCL, "", nullptr});
  EXPECT_NE(old.find("NCCL 2.7.8"), std::string::npos) << old;
  EXPECT_NE(old.find("need NCCL 2.18 or newer"), std::string::npos) << old;
  EXPECT_EQ(old.find('\n'), std::string::npos) << old;
  const std::string no_cuda = ErrorWith({COHORT_FAKE_NCCL, "/nowhere/libcudart.so", "", nullptr});
  EXPECT_NE(no_cuda.find("COHORT_CUDA_LIBRARY"), std::string::npos) << no_cuda;
}

}  // namespace
}  // namespace cohort::comm
