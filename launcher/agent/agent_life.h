// The life of an agent's node and of its job, as the agent counts them.
#pragma once

namespace cohort::launcher {

// The ranks of the node.
enum class NodeLife {
  kIdle,     // no assignment has come
  kRunning,  // ranks of an epoch run, or what they left behind, or it is not known yet that nothing does
  kDone,     // the epoch's ranks are gone, or none will be started
};

// Whether a node may go from `from` to `to`:
//   idle    -> running, done (the job ended before its ranks had started)
//   running -> done
//   done    -> running (another epoch)
constexpr bool MayFollow(NodeLife from, NodeLife to) {
  switch (to) {
    case NodeLife::kIdle:
      return false;
    case NodeLife::kRunning:
      return from != NodeLife::kRunning;
    case NodeLife::kDone:
      return from != NodeLife::kDone;
  }
  return false;
}

enum class JobLife {
  kGoesOn,
  kStopping,   // dlaunch, the rendezvous or SIGTERM has told the node to end its ranks
  kOver,       // the rendezvous has nothing more to say, or is gone
  kLingering,  // over, and this node stays a while for the others: it hosts the rendezvous, or stands by
};

// Whether a job may go from `from` to `to`:
//   goes on  -> stopping, over
//   stopping -> goes on (the ranks are restarted), over
//   over     -> lingering
constexpr bool MayFollow(JobLife from, JobLife to) {
  switch (to) {
    case JobLife::kGoesOn:
      return from == JobLife::kStopping;
    case JobLife::kStopping:
      return from == JobLife::kGoesOn;
    case JobLife::kOver:
      return from == JobLife::kGoesOn || from == JobLife::kStopping;
    case JobLife::kLingering:
      return from == JobLife::kOver;
  }
  return false;
}

// Whether its report has come, or none will.
constexpr bool IsOver(JobLife job) { return job == JobLife::kOver || job == JobLife::kLingering; }

}  // namespace cohort::launcher
