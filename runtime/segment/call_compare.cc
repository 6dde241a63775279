#include "cohort/runtime/segment/call_compare.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::runtime {
namespace {

constexpr size_t kVariantsShown = 8;

// The ranks that made one and the same call.
struct Variant {
  const CallView* example;
  std::vector<int> ranks;
};

std::string At(const CallView& view) { return view.site.empty() ? view.call : view.call + " at " + view.site; }

std::string OperationName(uint64_t group, uint64_t sequence) {
  return GroupName(group) + ", operation " + std::to_string(sequence);
}

std::vector<const CallView*> SortedByRank(std::span<const CallView> views) {
  std::vector<const CallView*> sorted;
  for (const CallView& view : views) sorted.push_back(&view);
  std::sort(sorted.begin(), sorted.end(), [](const CallView* a, const CallView* b) { return a->rank < b->rank; });
  return sorted;
}

// In the order of their lowest ranks.
std::vector<Variant> Variants(const std::vector<const CallView*>& views) {
  std::vector<Variant> variants;
  for (const CallView* view : views) {
    if (!view->seen || view->signature == 0) continue;
    const auto same = std::find_if(variants.begin(), variants.end(), [view](const Variant& variant) {
      return variant.example->signature == view->signature;
    });
    if (same != variants.end()) {
      same->ranks.push_back(view->rank);
    } else {
      variants.push_back(Variant{view, {view->rank}});
    }
  }
  return variants;
}

CallVerdict Mismatch(uint64_t group, uint64_t sequence, std::vector<Variant> variants) {
  size_t callers = 0;
  for (const Variant& variant : variants) callers += variant.ranks.size();
  CallVerdict verdict;
  verdict.kind = CallVerdict::Kind::kMismatch;
  const auto reference = std::find_if(variants.begin(), variants.end(),
                                      [callers](const Variant& v) { return 2 * v.ranks.size() > callers; });
  verdict.majority = reference != variants.end();
  if (verdict.majority) std::rotate(variants.begin(), reference, reference + 1);

  std::vector<CallVariant> described;
  for (size_t i = 0; i < variants.size(); ++i) {
    const Variant& variant = variants[i];
    if (i > 0) verdict.blamed.insert(verdict.blamed.end(), variant.ranks.begin(), variant.ranks.end());
    described.push_back({variant.ranks, variant.example->call, variant.example->site});
  }
  verdict.text = DescribeMismatch(group, sequence, described);
  std::sort(verdict.blamed.begin(), verdict.blamed.end());
  return verdict;
}

// Results of calls that agree.
std::optional<CallVerdict> DifferentResults(uint64_t group, uint64_t sequence,
                                            const std::vector<const CallView*>& sorted) {
  std::vector<ResultVariant> variants;
  const CallView* first = nullptr;
  for (const CallView* view : sorted) {
    if (!view->seen || view->result == 0) continue;
    AddResult(view->result, view->rank, &variants);
    if (first == nullptr) first = view;
  }
  if (variants.size() < 2) return std::nullopt;
  CallVerdict verdict;
  for (const ResultVariant& variant : variants) verdict.results += variant.ranks.size();
  verdict.kind = CallVerdict::Kind::kResults;
  verdict.majority = PutMajorityFirst(&variants);
  verdict.text = DescribeResults(group, sequence, At(*first), variants);
  for (size_t i = 1; i < variants.size(); ++i) {
    verdict.blamed.insert(verdict.blamed.end(), variants[i].ranks.begin(), variants[i].ranks.end());
  }
  std::sort(verdict.blamed.begin(), verdict.blamed.end());
  return verdict;
}

std::string DescribeLatest(const CallView& view) {
  std::string text = "rank " + std::to_string(view.rank);
  if (!view.node.empty()) text += " (" + view.node + ")";
  if (view.call.empty()) return text + " has made no call";
  return text + (view.done ? " last finished " : " is in ") + At(view) + ", called " + std::to_string(view.age_ms) +
         " ms ago";
}

}  // namespace

std::string GroupName(uint64_t group) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (int shift = 60; shift >= 0; shift -= 4) hex += kDigits[(group >> shift) & 15];
  return "group " + hex;
}

std::string DescribeRanks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ",";
    text += std::to_string(ranks[i]);
    if (last > i + 1) {
      text += "-" + std::to_string(ranks[last]);
    } else if (last == i + 1) {
      text += "," + std::to_string(ranks[last]);
    }
    i = last + 1;
  }
  return text;
}

std::string DescribeMismatch(uint64_t group, uint64_t sequence, std::span<const CallVariant> variants) {
  std::vector<int> callers;
  for (const CallVariant& variant : variants) callers.insert(callers.end(), variant.ranks.begin(), variant.ranks.end());
  std::sort(callers.begin(), callers.end());
  const bool majority = 2 * variants[0].ranks.size() > callers.size();
  std::string text = "calls do not match: ";
  if (!majority) text += DescribeRanks(callers) + " called different things: ";
  for (size_t i = 0; i < std::min(variants.size(), kVariantsShown); ++i) {
    const CallVariant& variant = variants[i];
    if (i > 0) text += majority && i == 1 ? "; but " : "; ";
    text += DescribeRanks(variant.ranks) + " called " + variant.call;
    if (!variant.site.empty()) text += " at " + variant.site;
    if (i > 0 && variant.call == variants[0].call) text += kOtherInvisibly;
  }
  if (variants.size() > kVariantsShown) {
    text += "; and " + std::to_string(variants.size() - kVariantsShown) + " more calls";
  }
  return text + " (" + OperationName(group, sequence) + ")" + kMismatchRemedy;
}

void AddResult(uint32_t result, int rank, std::vector<ResultVariant>* variants) {
  if (result == 0) return;
  const auto same = std::find_if(variants->begin(), variants->end(),
                                 [result](const ResultVariant& variant) { return variant.result == result; });
  if (same != variants->end()) {
    same->ranks.push_back(rank);
  } else {
    variants->push_back({result, {rank}});
  }
}

bool PutMajorityFirst(std::vector<ResultVariant>* variants) {
  size_t ranks = 0;
  for (const ResultVariant& variant : *variants) ranks += variant.ranks.size();
  const auto most = std::find_if(variants->begin(), variants->end(),
                                 [ranks](const ResultVariant& variant) { return 2 * variant.ranks.size() > ranks; });
  if (most == variants->end()) return false;
  std::rotate(variants->begin(), most, most + 1);
  return true;
}

std::string DescribeResults(uint64_t group, uint64_t sequence, const std::string& call,
                            std::span<const ResultVariant> variants) {
  size_t copies = 0;
  for (const ResultVariant& variant : variants) copies += variant.ranks.size();
  const bool majority = 2 * variants[0].ranks.size() > copies;
  std::string text = "results differ: ";
  if (majority) {
    std::vector<int> odd;
    for (const ResultVariant& variant : variants.subspan(1)) {
      odd.insert(odd.end(), variant.ranks.begin(), variant.ranks.end());
    }
    std::sort(odd.begin(), odd.end());
    text += DescribeRanks(odd) + (odd.size() == 1 ? " has" : " have") + " another result of " + call + " than " +
            DescribeRanks(variants[0].ranks);
  } else {
    for (size_t i = 0; i < std::min(variants.size(), kVariantsShown); ++i) {
      text += (i == 0 ? "" : i + 1 == variants.size() ? " and " : ", ") + DescribeRanks(variants[i].ranks);
    }
    text += " have different results of " + call + ", and none is that of most ranks";
  }
  return text + " (" + OperationName(group, sequence) + ")" + kResultsRemedy;
}

CallView MakeCallView(int rank, const std::string& node, const std::optional<CallRecord>& found, bool passed,
                      const std::optional<CallRecord>& latest) {
  CallView view;
  view.rank = rank;
  view.node = node;
  view.seen = found.has_value() || passed;
  if (found.has_value()) {
    view.signature = HashSignature(found->signature);
    view.result = found->result;
  }
  const std::optional<CallRecord>& shown = found.has_value() ? found : latest;
  if (!shown.has_value()) return view;
  view.call = DescribeCall(*shown);
  view.site = SiteOf(*shown);
  view.done = shown->state == CallState::kDone || shown->state == CallState::kFailed;
  view.failed = shown->state == CallState::kFailed;
  const uint64_t now = SteadyNow();
  view.age_ms = now > shown->start_ns ? (now - shown->start_ns) / 1'000'000 : 0;
  return view;
}

CallView InspectCall(const BlackBoxReader& box, int rank, const std::string& node, uint64_t group, uint32_t epoch,
                     uint64_t sequence) {
  const std::optional<CallRecord> found = box.Find(group, epoch, sequence);
  // If the box may have forgotten the call, no rank is accused of not having made it.
  const bool passed = found.has_value() || box.Reached(group, epoch, sequence).value_or(true);
  return MakeCallView(rank, node, found, passed, box.Latest());
}

CallVerdict CompareCalls(uint64_t group, uint64_t sequence, std::span<const CallView> views) {
  const std::vector<const CallView*> sorted = SortedByRank(views);
  std::vector<Variant> variants = Variants(sorted);
  if (variants.size() > 1) return Mismatch(group, sequence, std::move(variants));
  CallVerdict verdict;
  if (variants.empty()) return verdict;
  if (std::optional<CallVerdict> differ = DifferentResults(group, sequence, sorted)) return *std::move(differ);

  std::string latest;
  for (const CallView* view : sorted) {
    if (view->seen) continue;
    verdict.blamed.push_back(view->rank);
    if (verdict.blamed.size() <= kVariantsShown) latest += "; " + DescribeLatest(*view);
  }
  if (verdict.blamed.empty()) return verdict;
  verdict.kind = CallVerdict::Kind::kAbsent;
  const Variant& callers = variants[0];
  verdict.text = DescribeRanks(verdict.blamed) + (verdict.blamed.size() == 1 ? " has" : " have") +
                 " not made the call that " + DescribeRanks(callers.ranks) +
                 (callers.ranks.size() == 1 ? " waits in: " : " wait in: ") + At(*callers.example) + " (" +
                 OperationName(group, sequence) + ")" + latest;
  return verdict;
}

}  // namespace cohort::runtime
