#include "cohort/trainer/transfer/same_on_all_ranks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <sstream>

#include "c10/util/ArrayRef.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"

namespace cohort::trainer {
namespace {

constexpr const char* kWhat = "comparing the modules of the ranks";

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

}  // namespace

std::string DescribeTensor(const std::string& name, c10::ScalarType type, const std::vector<int64_t>& sizes) {
  std::ostringstream text;
  text << name << ": " << type << " " << c10::IntArrayRef(sizes);
  return text.str();
}

void CheckSameOnAllRanks(comm::Communicator& group, const std::string& who, const std::vector<std::string>& lines) {
  std::string mine;
  for (const std::string& line : lines) mine += line + "\n";
  const std::array<int64_t, 2> own = {static_cast<int64_t>(mine.size()),
                                      static_cast<int64_t>(std::hash<std::string>()(mine))};
  std::vector<std::array<int64_t, 2>> all(group.size());
  ThrowUnlessOk(group
                    .AllGather(comm::ConstBuffer(own.data(), 2),
                               comm::Buffer(all.front().data(), int64_t{2} * group.size()), Options())
                    .Wait(),
                kWhat);
  const auto differs = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each != all.front(); });
  if (differs == all.end()) return;
  std::vector<int64_t> counts;
  int64_t before = 0;
  for (auto each = all.begin(); each != all.end(); ++each) {
    if (each < differs) before += (*each)[0];
    counts.push_back((*each)[0]);
  }
  const std::string texts = GatherAll(group, mine, counts);
  const auto [theirs, reference] =
      FirstDifference(texts.substr(static_cast<size_t>(before), static_cast<size_t>((*differs)[0])),
                      texts.substr(0, static_cast<size_t>(counts.front())));
  throw DistributedError(absl::StatusCode::kFailedPrecondition, who + ": the module of rank " +
                                                                    std::to_string(differs - all.begin()) +
                                                                    " has other parameters than rank 0's; there \"" +
                                                                    theirs + "\", on rank 0 \"" + reference + "\"");
}

}  // namespace cohort::trainer
