// One namespace of OpenPMIx's server in this process: pmix_endpoint.h over the library.
#pragma once

#include <pmix_server.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/mpi/pmix/pmix_endpoint.h"
#include "cohort/launcher/agent/mpi/pmix/pmix_info.h"
#include "cohort/launcher/agent/mpi/pmix/pmix_library.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

// A folder for the ranks of a node. Open MPI would make one for files itself, and leave empty ones of it.
class RankFolder {
 public:
  explicit RankFolder(const std::string& path);
  ~RankFolder();
  RankFolder(const RankFolder&) = delete;
  RankFolder& operator=(const RankFolder&) = delete;

  // Empty: there is none.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A rank's place among the programs of the job.
struct ProgramPlace {
  uint32_t program = 0;
  uint32_t first = 0;  // the lowest rank that runs the same one
  uint32_t rank = 0;   // its number among those
};

class OpenPmixEndpoint;

// The servers of this process by namespace, for callbacks.
struct PmixServers {
  static PmixServers& All();
  runtime::Mutex mutex;
  std::map<std::string, OpenPmixEndpoint*> by_name COHORT_GUARDED_BY(mutex);
};

class OpenPmixEndpoint : public PmixEndpoint {
 public:
  OpenPmixEndpoint(const PmixLibrary* library, Job job, Handler handle)
      : library_(library),
        job_(std::move(job)),
        handle_(std::move(handle)),
        folder_(job_.folder),
        memory_folder_(job_.memory_folder) {
    const runtime::MutexLock lock(PmixServers::All().mutex);
    PmixServers::All().by_name[job_.name] = this;
  }
  ~OpenPmixEndpoint() override;

  absl::Status Register();
  std::vector<std::string> EnvironmentOf(int local_rank) override;
  void Answer(uint64_t number, const std::string& values) override;
  void AnswerLookUp(uint64_t number, const std::string& name, const std::string& value) override;
  void AnswerSpawn(uint64_t number, const std::string& world) override;
  void Refuse(uint64_t number, Refusal why) override;
  void AskForValues(int local_rank) override;
  std::string version() const override;

  void Tell(Event event) { handle_(std::move(event)); }
  // The rank is one of this node.
  int LocalRankOf(const pmix_proc_t& rank) const { return static_cast<int>(rank.rank) - own().first_rank; }
  // Whether the rank, or all of the namespace, belongs to this node.
  bool Has(pmix_rank_t rank) const {
    return rank == PMIX_RANK_WILDCARD
               ? job_.nodes.size() == 1
               : rank - static_cast<pmix_rank_t>(own().first_rank) < static_cast<pmix_rank_t>(own().ranks);
  }
  // A callback that waits for an answer; one of the functions is set. The library wants it called after its own call
  // of us has returned.
  struct Waiting {
    pmix_modex_cbfunc_t with_values = nullptr;
    pmix_op_cbfunc_t without = nullptr;
    pmix_lookup_cbfunc_t with_found = nullptr;
    pmix_spawn_cbfunc_t with_world = nullptr;
    void* argument = nullptr;
  };
  uint64_t Await(Waiting waiting) COHORT_EXCLUDES(mutex_) {
    const runtime::MutexLock lock(mutex_);
    waiting_[next_] = waiting;
    return next_++;
  }
  // Whether a call has no room beside those that wait. The library itself asks for each fence and for the values of
  // each rank once; other calls come as often as ranks make them.
  bool full() const COHORT_EXCLUDES(mutex_) {
    const runtime::MutexLock lock(mutex_);
    return waiting_.size() >= kMostCalls + 4 * static_cast<size_t>(job_.world_size);
  }

 private:
  static constexpr size_t kMostCalls = 512;

  // The one of that number, which waits no more.
  Waiting Take(uint64_t number) COHORT_EXCLUDES(mutex_);
  static void Fail(const Waiting& waiting, pmix_status_t why);
  const Node& own() const { return job_.nodes[job_.own]; }
  pmix_proc_t ProcessOf(int rank) const;
  void AddRank(PmixInfo* info, size_t node, int rank, const ProgramPlace& place) const;
  void AddFolders(PmixInfo* info) const;
  std::string FolderOf(int rank) const { return folder_.path() + "/" + std::to_string(rank); }
  absl::Status Failure(const char* call, pmix_status_t status) const {
    return WithRemedy(Remedy::kPmixFails,
                      absl::InternalError(std::string("PMIx can't serve the ranks: ") + call + ": " +
                                          library_->error_string(status) + "; --mpi none starts each rank alone"));
  }

  const PmixLibrary* const library_;
  const Job job_;
  const Handler handle_;
  const RankFolder folder_;
  const RankFolder memory_folder_;
  mutable runtime::Mutex mutex_;
  std::map<uint64_t, Waiting> waiting_ COHORT_GUARDED_BY(mutex_);
  uint64_t next_ COHORT_GUARDED_BY(mutex_) = 1;
};

// Calls `use` with the server of that namespace. False where there is none any more.
template <typename Use>
bool WithServer(const char* name, const Use& use) {
  const runtime::MutexLock lock(PmixServers::All().mutex);
  const auto found = PmixServers::All().by_name.find(name);
  if (found == PmixServers::All().by_name.end()) return false;
  use(found->second);
  return true;
}

// The same for a process that is one of the ranks of this node; false for others.
template <typename Use>
bool WithServerOf(const pmix_proc_t& rank, const Use& use) {
  bool is_here = false;
  return WithServer(rank.nspace,
                    [&](OpenPmixEndpoint* server) {
                      is_here = rank.rank != PMIX_RANK_WILDCARD && server->Has(rank.rank);
                      if (is_here) use(server);
                    }) &&
         is_here;
}

// Passes a call of such a rank on: `tell` gets the server, and Await's number. The status to return to the library.
template <typename Tell>
pmix_status_t PassOn(const pmix_proc_t& rank, const OpenPmixEndpoint::Waiting& waiting, const Tell& tell) {
  bool is_full = false;
  const bool known = WithServerOf(rank, [&](OpenPmixEndpoint* server) {
    is_full = server->full();
    if (!is_full) tell(server, server->Await(waiting));
  });
  if (!known) return PMIX_ERR_NOT_FOUND;
  return is_full ? PMIX_ERR_OUT_OF_RESOURCE : PMIX_SUCCESS;
}

}  // namespace cohort::launcher
