#include "cohort/trainer/transfer/same_on_all_ranks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>

#include "c10/util/ArrayRef.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"

namespace cohort::trainer {
namespace {

constexpr const char* kWhat = "comparing the modules and the setup of the ranks";

// These calls are the communicator's own, since ledgers and timers count what training sends; but they wait no longer
// than the trainer's collectives for a rank that does not come.
comm::CallOptions Options() { return {.timeout = default_timeout()}; }

// From rank 0 on, what each has; `counts` says how much.
std::string GatherAll(comm::Communicator& group, const std::string& mine, const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::string all(static_cast<size_t>(total), '\0');
  const comm::ConstBuffer in(reinterpret_cast<const uint8_t*>(mine.data()), static_cast<int64_t>(mine.size()));
  const comm::Buffer out(reinterpret_cast<uint8_t*>(all.data()), total);
  ThrowUnlessOk(group.AllGatherV(in, out, {.counts = counts, .displacements = {}}, Options()).Wait(), kWhat);
  return all;
}

// The first line in which they differ, of both; "nothing" where one has ended.
std::array<std::string, 2> FirstDifference(const std::string& a, const std::string& b) {
  std::istringstream of_a(a), of_b(b);
  while (true) {
    std::string line_a, line_b;
    const bool has_a = static_cast<bool>(std::getline(of_a, line_a));
    const bool has_b = static_cast<bool>(std::getline(of_b, line_b));
    if (has_a == has_b && line_a == line_b && has_a) continue;
    return {has_a ? line_a : "nothing more", has_b ? line_b : "nothing more"};
  }
}

// Two words of each rank.
std::vector<std::array<int64_t, 2>> GatherWords(comm::Communicator& group, const std::array<int64_t, 2>& own) {
  std::vector<std::array<int64_t, 2>> all(group.size());
  ThrowUnlessOk(group
                    .AllGather(comm::ConstBuffer(own.data(), 2),
                               comm::Buffer(all.front().data(), int64_t{2} * group.size()), Options())
                    .Wait(),
                kWhat);
  return all;
}

// The first rank whose text differs from rank 0's, and both texts.
struct Difference {
  int rank;
  std::string theirs, reference;
};
std::optional<Difference> Compare(comm::Communicator& group, const std::string& mine) {
  const auto all =
      GatherWords(group, {static_cast<int64_t>(mine.size()), static_cast<int64_t>(std::hash<std::string>()(mine))});
  const auto differs = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each != all.front(); });
  if (differs == all.end()) return std::nullopt;
  std::vector<int64_t> counts;
  int64_t before = 0;
  for (auto each = all.begin(); each != all.end(); ++each) {
    if (each < differs) before += (*each)[0];
    counts.push_back((*each)[0]);
  }
  const std::string texts = GatherAll(group, mine, counts);
  return Difference{static_cast<int>(differs - all.begin()),
                    texts.substr(static_cast<size_t>(before), static_cast<size_t>((*differs)[0])),
                    texts.substr(0, static_cast<size_t>(counts.front()))};
}

// The part of `text` from `at` on that a zero ends. Moves `at` behind it.
std::string Next(const std::string& text, size_t& at) {
  const size_t end = std::min(text.find('\0', at), text.size());
  std::string part = text.substr(std::min(at, end), end - std::min(at, end));
  at = end + 1;
  return part;
}

}  // namespace

std::string DescribeTensor(const std::string& name, c10::ScalarType type, const std::vector<int64_t>& sizes) {
  std::ostringstream text;
  text << name << ": " << type << " " << c10::IntArrayRef(sizes);
  return text.str();
}

SetupFact ModelFact(const std::vector<std::string>& lines) {
  SetupFact fact = {.what = "model", .value = ""};
  for (const std::string& line : lines) fact.value += line + "\n";
  return fact;
}

void CheckSameOnAllRanks(comm::Communicator& group, const std::string& who, const std::vector<std::string>& lines) {
  CheckSameSetup(group, who, {ModelFact(lines)});
}

void CheckSameSetup(comm::Communicator& group, const std::string& who, const std::vector<SetupFact>& facts) {
  std::string mine;
  for (const SetupFact& fact : facts) mine += fact.value + '\0';
  const std::optional<Difference> found = Compare(group, mine);
  if (!found.has_value()) return;
  std::string text;
  size_t at_theirs = 0, at_reference = 0;
  for (const SetupFact& fact : facts) {
    const std::string theirs = Next(found->theirs, at_theirs), reference = Next(found->reference, at_reference);
    if (theirs == reference) continue;
    const auto [line, other] = FirstDifference(theirs, reference);
    text += (text.empty() ? "" : "; ") + fact.what + " \"" + line + "\" there, \"" + other + "\" on rank 0";
  }
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         who + ": rank " + std::to_string(found->rank) + " was set up otherwise than rank 0: " + text);
}

void CheckSameValues(comm::Communicator& group, const std::string& who, const std::vector<at::Tensor>& tensors,
                     const std::string& remedy) {
  int64_t hash = 0, bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
    const std::string_view view(static_cast<const char*>(here.data_ptr()), here.nbytes());
    hash = hash * 31 + static_cast<int64_t>(std::hash<std::string_view>()(view));
    bytes += static_cast<int64_t>(here.nbytes());
  }
  const std::vector<std::array<int64_t, 2>> all = GatherWords(group, {bytes, hash});
  const auto differs = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each != all.front(); });
  if (differs == all.end()) return;
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         who + ": rank " + std::to_string(differs - all.begin()) +
                             " of the replicas starts from other values than rank 0; " + remedy);
}

}  // namespace cohort::trainer
