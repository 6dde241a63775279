// The second net against calls that do not match: what several ranks' black boxes say of one operation, compared. Used
// by ranks for the members on their node; agents make views of it, which the rendezvous compares across nodes in its
// own words (launcher/control/call_comparison.h), knowing also who has ended. Plain data, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::runtime {

// One rank's black box' view of operation `sequence` of a group.
struct CallView {
  int rank = -1;     // in the world
  std::string node;  // its node's name; may be empty
  // True when the rank has made this call. `signature` is 0 when it did so too long ago for its ring to know how.
  bool seen = false;
  uint64_t signature = 0;  // HashSignature; equal exactly when calls agree
  uint32_t result = 0;     // CallRecord::result of the call, if it was seen
  // The call, or, when it was not seen, the rank's latest call in any group; empty when it has made none.
  std::string call;  // DescribeCall
  std::string site;
  bool done = false;
  bool failed = false;  // done, with an error
  uint64_t age_ms = 0;  // since the call started
};

// From a black box, or from the records found in one: `found` is the operation's record, `reached` the highest
// sequence of the group, `latest` the newest record of all.
CallView InspectCall(const BlackBoxReader& box, int rank, const std::string& node, uint64_t group, uint32_t epoch,
                     uint64_t sequence);
CallView MakeCallView(int rank, const std::string& node, const std::optional<CallRecord>& found, bool passed,
                      const std::optional<CallRecord>& latest);

struct CallVerdict {
  enum class Kind {
    kNone,      // all have made the same call, or nobody is known to have made it
    kMismatch,  // calls differ
    kResults,   // calls agree, but not what they gave their ranks
    kAbsent,    // calls agree, but some ranks have not made theirs
  };
  Kind kind = Kind::kNone;
  // One line for people: ranks, calls, call sites. Empty for kNone.
  std::string text;
  // kMismatch and kResults: the ranks whose call or result is not the reference; kAbsent: those who have not called.
  // Ascending.
  std::vector<int> blamed;
  // kMismatch and kResults: whether more than half of the callers have the reference. Otherwise the reference is the
  // lowest rank's, and nobody can tell who is wrong.
  bool majority = false;
  // kResults: the ranks whose results are known. Those of others may come.
  size_t results = 0;
};

// Names the possible differences of calls of which DescribeCall says the same.
inline constexpr char kOtherInvisibly[] = " with another algorithm or tuning table, or with other counts";

// The ranks that made one and the same call.
struct CallVariant {
  std::vector<int> ranks;  // ascending
  std::string call;        // DescribeCall
  std::string site;
};
// The error of calls that do not match, for people: ranks, calls and call sites, and what to do. The variants (two or
// more) come with the call of most ranks first; where no call is that of more than half, nobody is said to be wrong.
std::string DescribeMismatch(uint64_t group, uint64_t sequence, std::span<const CallVariant> variants);
inline constexpr const char* kMismatchRemedy =
    "; make all members call the same operations in the same order with equal arguments";

// The ranks that got one and the same result of a call.
struct ResultVariant {
  uint32_t result = 0;
  std::vector<int> ranks;  // ascending
};
// Adds a rank, of those in ascending order, to the variant of its result. Nothing for 0.
void AddResult(uint32_t result, int rank, std::vector<ResultVariant>* variants);
// Moves the result of more than half of these ranks to the front. False: there is none.
bool PutMajorityFirst(std::vector<ResultVariant>* variants);
// The error of results that are not equal, for people: the call, and the ranks that stand out. `call` with its site.
// The variants (two or more) are as PutMajorityFirst left them.
std::string DescribeResults(uint64_t group, uint64_t sequence, const std::string& call,
                            std::span<const ResultVariant> variants);

inline constexpr const char* kResultsRemedy =
    "; test the memory of the rank's machine, and look for code that writes to the buffer before the call is done";

// Compares the views of a group's members (at most one a rank; in any order).
CallVerdict CompareCalls(uint64_t group, uint64_t sequence, std::span<const CallView> views);

// "group 00000000000000ff".
std::string GroupName(uint64_t group);

// "rank 3", "ranks 0-2,5"; ascending input.
std::string DescribeRanks(std::span<const int> ranks);

}  // namespace cohort::runtime
