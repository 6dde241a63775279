#include "tools/collperf/peers/bare_pair.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/transport/stream_copy.h"
#include "cohort/comm/types.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/whole_file.h"

namespace cohort::collperf {
namespace {

constexpr size_t kLeavesCaches = 1 << 20;

std::string NoteOf(const std::string& folder) { return folder + "/bare"; }

}  // namespace

uint64_t BarePair::Swap(uint64_t value) {
  uint64_t other = 0;
  Run({.send = reinterpret_cast<const std::byte*>(&value),
       .send_bytes = sizeof value,
       .receive = reinterpret_cast<std::byte*>(&other),
       .receive_bytes = sizeof other});
  return other;
}

void TakeBytes(const BareStep& step, const std::byte* arrived, size_t at, size_t bytes) {
  static const comm::ReduceKernel sum = comm::FindReduceKernel(comm::DataType::kFloat32, comm::ReduceOp::kSum);
  if (step.addend == nullptr) {
    std::memcpy(step.receive + at, arrived, bytes);
  } else {
    sum(step.receive + at, step.addend + at, arrived, bytes / sizeof(float));
  }
}

void CopyBlock(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < kLeavesCaches) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  } else {
    comm::StreamCopy(to, from, bytes);
  }
}

absl::Status LeaveNote(const std::string& folder, const std::string& note) {
  return runtime::WriteWholeFile(NoteOf(folder), note);
}

absl::StatusOr<std::string> ReadNote(const std::string& folder) {
  const runtime::Deadline deadline = runtime::Deadline::After(std::chrono::seconds(30));
  while (!deadline.passed()) {
    std::ifstream file(NoteOf(folder));
    std::stringstream text;
    if (file) text << file.rdbuf();
    if (!text.str().empty()) return text.str();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return absl::DeadlineExceededError("the other rank left no note in " + folder);
}

void EndRank(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

}  // namespace cohort::collperf
