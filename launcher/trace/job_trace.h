// The trace of a job, in the dlaunch that runs it: tells the agents to read the rings of their ranks, and makes one
// file of what they send.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/trace/node_clocks.h"
#include "cohort/launcher/trace/trace_file.h"
#include "cohort/launcher/trace/trace_packets.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/ranges.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// On the loop's thread. There is one trace at a time.
class JobTrace {
 public:
  struct Surroundings {
    std::vector<std::string> names;  // of the nodes, by agent
    std::function<void(size_t agent, const v1::TraceOrder& order)> tell;
    std::function<void(const std::string& text)> say;  // to the user
  };
  JobTrace(EventLoop* loop, Surroundings surroundings);
  ~JobTrace() { loop_->Cancel(timer_); }
  JobTrace(const JobTrace&) = delete;
  JobTrace& operator=(const JobTrace&) = delete;

  struct Wish {
    std::string path;
    std::chrono::milliseconds length{0};  // 0: to the end of the job
    std::chrono::milliseconds keep{0};    // of the latest, at least; 0: all
    bool past = false;                    // with the calls of before that the rings of the ranks hold
    bool while_asked = false;             // it ends when nobody has asked for it for kAskedWithin
    bool quiet = false;                   // its end is not said to the user: `Answer` tells it
  };
  static constexpr std::chrono::seconds kAskedWithin{5};

  // kFirst: waits until the file is open, before there is a job. kMeanwhile: does not wait for a file system that does
  // not answer; the trace ends if the file can't be opened.
  enum class Opening : uint8_t { kFirst, kMeanwhile };
  // Begins a trace. kInvalidArgument: the file can't be written. kFailedPrecondition: one is being taken.
  // kDeadlineExceeded: its file system does not answer.
  absl::Status Start(const Wish& wish, Opening opening = Opening::kFirst);
  // An agent has got its start, and may be told of the trace.
  void OnAgentStarted(size_t agent);
  // False: the message is none that an agent sends.
  bool OnTrace(size_t agent, const v1::NodeTrace& trace);
  // Something that befell the job: "restart", with its reason.
  void OnEvent(const std::string& name, const std::string& text);
  // The answer to `dlaunch trace`, which begins a trace or asks for one.
  v1::TraceState Answer(const v1::TraceRequest& request);
  // The job is over: ends a trace that is being taken, and says what it holds.
  void Finish(runtime::Deadline deadline);

 private:
  static constexpr std::chrono::milliseconds kLookEvery{100};
  static constexpr std::chrono::milliseconds kWriteEvery{500};  // to compress few packets costs as much as many
  static constexpr std::chrono::milliseconds kOpensFirstWithin{5000};
  static constexpr std::chrono::milliseconds kOpensAtOnceWithin{20};  // the loop's time
  static constexpr std::chrono::seconds kAgentsSendWithin{2};         // the rest, when a trace is to end
  static constexpr std::chrono::seconds kFirstNodeWithin{2};          // its clocks
  static constexpr std::chrono::seconds kDiskTakesWithin{5};          // the rest, then
  static constexpr size_t kMostBytes = 64u << 20;                     // of a message, uncompressed
  static constexpr size_t kPieceBytes = 256u << 10;

  struct Event {
    std::string name;
    std::string text;
    uint64_t unix_ns = 0;
  };
  // Each phase follows the one before it. Finish goes from either of the first two to the third.
  enum class Phase : uint8_t {
    kReads,      // the agents read rings
    kAwaitsEnd,  // they have been told to end it
    kWritten,    // its last packet waits for the disk
  };
  // A trace that is being taken.
  struct Taking {
    Taking(size_t nodes, CallMeetings::OnMet on_met)
        : clocks(nodes), meetings(std::move(on_met)), ended(nodes, false) {}
    std::unique_ptr<TraceFile> file;
    std::chrono::milliseconds keep{0};
    bool past = false;
    bool while_asked = false;
    bool quiet = false;
    EventLoop::Clock::time_point asked;  // the latest time
    EventLoop::Clock::time_point begun, part_begun;
    EventLoop::Clock::time_point written{};  // the latest piece
    EventLoop::Clock::time_point until;      // max: to the end of the job
    Phase phase = Phase::kReads;
    bool has_clock = false;  // the file, or its latest part, has begun
    NodeClocks clocks;
    CallMeetings meetings;
    TracePackets packets;
    std::vector<bool> ended;  // by agent: it has sent its last
    uint64_t flows = 0;
    uint64_t calls_of_part = 0;  // of those that the file holds
    uint64_t older = 0;          // calls that the file holds no more
    uint64_t unwritten = 0;      // calls since the latest piece
    uint64_t unwritten_ranges = 0;
    uint64_t missed_ranges = 0;  // of all of the trace
    std::vector<Event> events;   // that are not in `packets` yet
  };

  v1::TraceOrder Order(bool on) const;
  void Tell(bool on);
  bool AddCalls(size_t agent, const v1::RankCalls& calls);
  bool AddStates(size_t agent, const v1::RankStates& states);
  bool AddRanges(size_t agent, const v1::RankRanges& ranges);
  void OnMet(const std::vector<TracedCall>& calls, bool complete);
  void LearnClocks(const std::vector<TracedCall>& calls);
  void Look();
  void BeginFile(bool in_any_case);
  void BeginPart();
  void WritePackets();
  void AwaitDisk();
  void WriteRest();
  void Report(const absl::Status& written);
  std::string Summary() const;

  EventLoop* const loop_;
  const Surroundings surroundings_;
  std::unique_ptr<Taking> taking_;
  uint64_t number_ = 0;       // of the latest trace
  v1::TraceState state_;      // of the latest trace
  std::vector<bool> agents_;  // that have been started
  EventLoop::TimerId timer_ = 0;
};

}  // namespace cohort::launcher
