#include "cohort/launcher/base/bounded_call.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using runtime::FileDescriptor;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(BoundedCall, ReturnsTheResultOfTheCall) {
  BoundedCall call([] { return absl::NotFoundError("nowhere"); });
  EXPECT_EQ(call.Await(Deadline::After(seconds(60))), absl::NotFoundError("nowhere"));
  EXPECT_EQ(call.Await(Deadline::Now()), absl::NotFoundError("nowhere")) << "asked again";
}

// A named pipe that nobody reads stands for a file server that is gone.
TEST(BoundedCall, LeavesABlockedCallBehind) {
  char folder[] = "/tmp/cohort-bounded-call-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto call = std::make_unique<BoundedCall>([path] {
    const FileDescriptor pipe(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return absl::OkStatus();
  });
  EXPECT_EQ(call->Await(Deadline::After(milliseconds(50))), std::nullopt);
  call.reset();
  const FileDescriptor reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // lets it go
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cohort::launcher
