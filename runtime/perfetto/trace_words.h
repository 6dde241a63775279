// The names of what the traces of dlaunch and of predictions hold, for their writers and readers.
#pragma once

namespace cohort::runtime {

struct TraceWords {
  // Tracks.
  static constexpr char kJob[] = "job";
  static constexpr char kRank[] = "rank ";  // with its number behind it
  static constexpr char kOutsideCalls[] = " outside calls";
  static constexpr char kLongCalls[] = " long calls";
  // Behind the rank: index: RangeLane. Marks of steps are on the track of the calls.
  static constexpr const char* kLanes[] = {"", " program", " passes", " stages", " buckets", " checkpoints"};
  static constexpr char kPredicted[] = ", predicted: ";  // with what is predicted behind it

  // Events.
  static constexpr char kBegin[] = "begin of the trace";
  static constexpr char kMissing[] = "calls missing";
  static constexpr char kGoesOn[] = "call goes on";
  static constexpr char kRangesMissing[] = "ranges missing";
  static constexpr char kStep[] = "step";

  // Arguments.
  static constexpr char kFormat[] = "format";
  static constexpr char kText[] = "text";
  static constexpr char kCalls[] = "calls";
  static constexpr char kOperation[] = "operation";
  static constexpr char kBegan[] = "began ns";
  static constexpr char kRanges[] = "ranges";
  static constexpr char kNumber[] = "number";
  static constexpr char kCall[] = "call";
  static constexpr char kSite[] = "site";
  static constexpr char kAlgorithm[] = "algorithm";
  static constexpr char kTransports[] = "transports";
  static constexpr char kBytes[] = "bytes";
  static constexpr char kGroup[] = "group";
  static constexpr char kGroupSize[] = "group size";
  static constexpr char kEpoch[] = "epoch";
  static constexpr char kSequence[] = "sequence";
  static constexpr char kDevice[] = "device";
  static constexpr char kOtherRank[] = "other rank";
  static constexpr char kEnded[] = "ended";
  static constexpr char kWithError[] = "with an error";
  static constexpr char kNotEnded[] = "not, as far as is known";
  static constexpr char kOthers[] = "others";
  static constexpr char kObject[] = "of";
  static constexpr char kPlace[] = "place";
  static constexpr char kComputed[] = "computed ns";
  static constexpr char kQueued[] = "queued ns";
  static constexpr char kThrottled[] = "throttled ns";
};

}  // namespace cohort::runtime
