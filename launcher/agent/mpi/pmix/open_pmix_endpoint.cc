#include "cohort/launcher/agent/mpi/pmix/open_pmix_endpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "cohort/launcher/agent/mpi/pmix/pmix_callbacks.h"
#include "cohort/launcher/agent/mpi/pmix/published_value.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kCallLimit{10};
constexpr std::chrono::seconds kEndLimit{1};

// A call that the library's thread completes. Late ones find their place still there, and what they were given.
class Completion {
 public:
  Completion() = default;
  // `given` lives until the library is done with it.
  explicit Completion(std::shared_ptr<void> given) { state_->given = std::move(given); }
  // For the library, with Argument().
  static void Done(pmix_status_t status, void* argument) {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(argument));
    const runtime::MutexLock lock((*state)->mutex);
    (*state)->status = status;
    (*state)->done.NotifyAll();
  }
  // Once; Done frees it.
  void* Argument() { return argument_ = new std::shared_ptr<State>(state_); }
  // The status of a call that returned `returned`.
  pmix_status_t Wait(pmix_status_t returned, runtime::Deadline deadline) {
    if (returned != PMIX_SUCCESS) {  // it calls nothing back
      delete argument_;
      return returned == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : returned;
    }
    const runtime::MutexLock lock(state_->mutex);
    while (!state_->status) {
      if (!state_->done.Wait(state_->mutex, deadline) && !state_->status) return PMIX_ERR_TIMEOUT;
    }
    return *state_->status;
  }

 private:
  struct State {
    runtime::Mutex mutex;
    runtime::CondVar done;
    std::optional<pmix_status_t> status COHORT_GUARDED_BY(mutex);
    std::shared_ptr<void> given;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::shared_ptr<State>* argument_ = nullptr;
};

std::vector<ProgramPlace> PlacesInPrograms(const PmixEndpoint::Job& job) {
  std::vector<ProgramPlace> places(static_cast<size_t>(job.world_size));
  std::map<int, std::pair<uint32_t, uint32_t>> seen;  // by program: its lowest rank, and its ranks so far
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const int program = rank < job.programs.size() ? job.programs[rank] : 0;
    auto& [first, count] = seen.try_emplace(program, static_cast<uint32_t>(rank), 0).first->second;
    places[rank] = {.program = static_cast<uint32_t>(program), .first = first, .rank = count++};
  }
  return places;
}

absl::Status InitOnce(const PmixLibrary& library, const std::string& host) {
  static pmix_server_module_t module = PmixCallbacks();
  static const pmix_status_t status = [&] {
    PmixInfo info;
    info.Add(PMIX_SERVER_NSPACE, "dlaunch");
    info.AddRank(PMIX_SERVER_RANK, 0);
    info.Add(PMIX_HOSTNAME, host);
    return library.server_init(&module, info.data(), info.size());
  }();
  if (status == PMIX_SUCCESS) return absl::OkStatus();
  return WithRemedy(Remedy::kPmixFails,
                    absl::InternalError(std::string("PMIx's server does not start: ") + library.error_string(status) +
                                        "; --mpi none starts each rank alone"));
}

}  // namespace

RankFolder::RankFolder(const std::string& path) {
  if (!path.empty() && ::mkdir(path.c_str(), 0700) == 0) path_ = path;
}

RankFolder::~RankFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

PmixServers& PmixServers::All() {
  static auto* const servers = new PmixServers();  // the library's thread outlives main
  return *servers;
}

pmix_proc_t OpenPmixEndpoint::ProcessOf(int rank) const {
  pmix_proc_t process{};
  std::strncpy(process.nspace, job_.name.c_str(), sizeof process.nspace - 1);
  process.rank = static_cast<pmix_rank_t>(rank);
  return process;
}

void OpenPmixEndpoint::AddRank(PmixInfo* info, size_t node, int rank, const ProgramPlace& place) const {
  const auto number = static_cast<uint32_t>(rank);
  const auto local = static_cast<uint16_t>(rank - job_.nodes[node].first_rank);
  PmixInfo& its = info->AddList(PMIX_PROC_DATA);
  its.AddRank(PMIX_RANK, number);
  its.AddNumber(PMIX_APPNUM, place.program);
  its.AddRank(PMIX_APPLDR, place.first);
  its.AddRank(PMIX_APP_RANK, place.rank);
  its.AddRank(PMIX_GLOBAL_RANK, number);
  its.AddShort(PMIX_LOCAL_RANK, local);
  its.AddShort(PMIX_NODE_RANK, local);
  its.AddNumber(PMIX_NODEID, static_cast<uint32_t>(node));
  its.Add(PMIX_HOSTNAME, job_.nodes[node].name);
  if (node == job_.own && !folder_.path().empty()) its.Add(PMIX_PROCDIR, FolderOf(rank));
  if (job_.parent.empty()) return;
  its.AddFlag(PMIX_SPAWNED);
  its.AddProcess(PMIX_PARENT_ID, job_.parent, static_cast<uint32_t>(job_.parent_rank));
}

// Open MPI uses folders that it is told of only where all of them are there.
void OpenPmixEndpoint::AddFolders(PmixInfo* info) const {
  if (folder_.path().empty()) return;
  for (int i = 0; i < own().ranks; ++i) ::mkdir(FolderOf(own().first_rank + i).c_str(), 0700);
  info->Add(PMIX_TMPDIR, folder_.path());
  info->Add(PMIX_NSDIR, folder_.path());
  info->AddFlag(PMIX_TDIR_RMCLEAN);
}

// The whole job is told, by the names that RAW keys take: what PMIx makes of them otherwise may hold zeros.
absl::Status OpenPmixEndpoint::Register() {
  const auto owned = std::make_shared<PmixInfo>();
  PmixInfo& info = *owned;
  const auto size = static_cast<uint32_t>(job_.world_size), local = static_cast<uint32_t>(own().ranks);
  const std::vector<ProgramPlace> places = PlacesInPrograms(job_);
  std::string hosts, ranks, peers;
  for (size_t node = 0; node < job_.nodes.size(); ++node) {
    std::string its;
    for (int i = 0; i < job_.nodes[node].ranks; ++i) {
      const int rank = job_.nodes[node].first_rank + i;
      its += (i > 0 ? "," : "") + std::to_string(rank);
      AddRank(&info, node, rank, places[static_cast<size_t>(rank)]);
    }
    hosts += (node > 0 ? "," : "") + job_.nodes[node].name;
    ranks += (node > 0 ? ";" : "") + its;
    if (node == job_.own) peers = its;
  }
  info.AddNumber(PMIX_UNIV_SIZE, static_cast<uint32_t>(job_.universe));
  for (const char* key : {PMIX_JOB_SIZE, PMIX_MAX_PROCS}) info.AddNumber(key, size);
  for (const char* key : {PMIX_LOCAL_SIZE, PMIX_NODE_SIZE}) info.AddNumber(key, local);
  const auto last = std::max_element(job_.programs.begin(), job_.programs.end());
  info.AddNumber(PMIX_JOB_NUM_APPS, last == job_.programs.end() ? 1 : static_cast<uint32_t>(*last) + 1);
  info.AddNumber(PMIX_NUM_NODES, static_cast<uint32_t>(job_.nodes.size()));
  info.AddNumber(PMIX_NODEID, static_cast<uint32_t>(job_.own));
  info.Add(PMIX_JOBID, job_.name);
  info.Add(PMIX_NODE_MAP_RAW, hosts);
  info.Add(PMIX_PROC_MAP_RAW, ranks);
  info.Add(PMIX_LOCAL_PEERS, peers);
  info.AddRank(PMIX_LOCALLDR, static_cast<uint32_t>(own().first_rank));
  AddFolders(&info);

  const auto deadline = runtime::Deadline::After(kCallLimit);
  Completion registered(owned);
  pmix_status_t status = library_->register_nspace(job_.name.c_str(), own().ranks, info.data(), info.size(),
                                                   Completion::Done, registered.Argument());
  status = registered.Wait(status, deadline);
  if (status != PMIX_SUCCESS) return Failure("PMIx_server_register_nspace", status);
  std::vector<Completion> known(local);
  std::vector<pmix_status_t> returned;
  for (uint32_t i = 0; i < local; ++i) {
    const pmix_proc_t rank = ProcessOf(own().first_rank + static_cast<int>(i));
    returned.push_back(
        library_->register_client(&rank, ::getuid(), ::getgid(), nullptr, Completion::Done, known[i].Argument()));
  }
  for (uint32_t i = 0; i < local; ++i) {
    const pmix_status_t its = known[i].Wait(returned[i], deadline);
    if (its != PMIX_SUCCESS) status = its;
  }
  return status == PMIX_SUCCESS ? absl::OkStatus() : Failure("PMIx_server_register_client", status);
}

OpenPmixEndpoint::~OpenPmixEndpoint() {
  {
    const runtime::MutexLock lock(PmixServers::All().mutex);
    PmixServers::All().by_name.erase(job_.name);
  }
  std::map<uint64_t, Waiting> waiting;
  {
    const runtime::MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& [number, its] : waiting) Fail(its, PMIX_ERR_LOST_CONNECTION);
  // Removes the files of ranks that were killed.
  Completion gone;
  library_->deregister_nspace(job_.name.c_str(), Completion::Done, gone.Argument());
  gone.Wait(PMIX_SUCCESS, runtime::Deadline::After(kEndLimit));
}

std::vector<std::string> OpenPmixEndpoint::EnvironmentOf(int local_rank) {
  const pmix_proc_t rank = ProcessOf(own().first_rank + local_rank);
  char** variables = nullptr;
  std::vector<std::string> environment;
  if (library_->setup_fork(&rank, &variables) == PMIX_SUCCESS) {
    for (char** variable = variables; variable != nullptr && *variable != nullptr; ++variable) {
      environment.emplace_back(*variable);
      std::free(*variable);
    }
  }
  std::free(variables);
  environment.emplace_back("JSM_JSRUN_PORT=0");
  for (const char* const component : {"vader", "sm"}) {  // of Open MPI 4 and 5
    if (memory_folder_.path().empty()) break;
    environment.push_back(std::string("OMPI_MCA_btl_") + component + "_backing_directory=" + memory_folder_.path());
  }
  return environment;
}

void OpenPmixEndpoint::Answer(uint64_t number, const std::string& values) {
  const Waiting waiting = Take(number);
  if (waiting.without != nullptr) waiting.without(PMIX_SUCCESS, waiting.argument);
  if (waiting.with_values == nullptr) return;
  // The library reads it later.
  auto* const kept = new std::string(values);
  waiting.with_values(
      PMIX_SUCCESS, kept->data(), kept->size(), waiting.argument,
      [](void* text) { delete static_cast<std::string*>(text); }, kept);
}

void OpenPmixEndpoint::AnswerLookUp(uint64_t number, const std::string& name, const std::string& value) {
  const Waiting waiting = Take(number);
  if (waiting.with_found == nullptr) return;
  PublishedValue found;
  if (!found.Parse(name, value)) return Fail(waiting, PMIX_ERR_NOT_FOUND);
  waiting.with_found(PMIX_SUCCESS, found.data(), 1, waiting.argument);
}

void OpenPmixEndpoint::AnswerSpawn(uint64_t number, const std::string& world) {
  const Waiting waiting = Take(number);
  pmix_nspace_t name{};
  std::strncpy(name, world.c_str(), sizeof name - 1);
  if (waiting.with_world != nullptr) waiting.with_world(PMIX_SUCCESS, name, waiting.argument);
}

void OpenPmixEndpoint::Refuse(uint64_t number, Refusal why) {
  const std::map<Refusal, pmix_status_t> statuses = {{Refusal::kNotFound, PMIX_ERR_NOT_FOUND},
                                                     {Refusal::kTaken, PMIX_ERR_DUPLICATE_KEY},
                                                     {Refusal::kNoRoom, PMIX_ERR_OUT_OF_RESOURCE},
                                                     {Refusal::kNotSupported, PMIX_ERR_NOT_SUPPORTED},
                                                     {Refusal::kFailed, PMIX_ERROR}};
  Fail(Take(number), statuses.at(why));
}

OpenPmixEndpoint::Waiting OpenPmixEndpoint::Take(uint64_t number) {
  const runtime::MutexLock lock(mutex_);
  const auto found = waiting_.extract(number);
  return found.empty() ? Waiting{} : found.mapped();
}

void OpenPmixEndpoint::Fail(const Waiting& waiting, pmix_status_t why) {
  if (waiting.without != nullptr) waiting.without(why, waiting.argument);
  if (waiting.with_values != nullptr) waiting.with_values(why, nullptr, 0, waiting.argument, nullptr, nullptr);
  if (waiting.with_found != nullptr) waiting.with_found(why, nullptr, 0, waiting.argument);
  pmix_nspace_t none{};
  if (waiting.with_world != nullptr) waiting.with_world(why, none, waiting.argument);
}

void OpenPmixEndpoint::AskForValues(int local_rank) {
  struct Asked {
    std::string name;
    int local_rank;
  };
  const pmix_proc_t rank = ProcessOf(own().first_rank + local_rank);
  auto asked = std::make_unique<Asked>(Asked{job_.name, local_rank});
  const auto answer = [](pmix_status_t status, char* values, size_t bytes, void* argument) {
    const std::unique_ptr<Asked> its(static_cast<Asked*>(argument));
    PmixEndpoint::Values told{its->local_rank, "", status == PMIX_SUCCESS};
    if (told.found && values != nullptr) told.values.assign(values, bytes);
    WithServer(its->name.c_str(), [&](auto* server) { server->Tell(std::move(told)); });
  };
  if (library_->dmodex_request(&rank, answer, asked.get()) == PMIX_SUCCESS) {
    asked.release();
  } else {
    Tell(Values{local_rank, "", false});
  }
}

// "OpenPMIx 4.2.2 (PMIx Standard: 4.1, ...)": repairs keep the form of the values.
std::string OpenPmixEndpoint::version() const {
  const std::string text = library_->get_version();
  const size_t begin = std::min(text.find_first_of("0123456789"), text.size());
  const size_t minor = std::min(text.find('.', begin), text.size());
  return text.substr(begin, text.find_first_not_of("0123456789", minor + 1) - begin);
}

// Other modules keep what the ranks are told in files, which a killed agent would leave behind.
void PreparePmixEnvironment() { ::setenv("PMIX_MCA_gds", "hash", 1); }

absl::StatusOr<std::unique_ptr<PmixEndpoint>> StartPmixEndpoint(const PmixEndpoint::Job& job,
                                                                PmixEndpoint::Handler handle) {
  const absl::StatusOr<const PmixLibrary*> library = PmixLibrary::Open();
  if (!library.ok()) return library.status();
  absl::Status status = InitOnce(**library, job.nodes[job.own].name);
  if (!status.ok()) return status;
  auto server = std::make_unique<OpenPmixEndpoint>(*library, job, std::move(handle));
  status = server->Register();
  if (!status.ok()) return status;
  return server;
}

}  // namespace cohort::launcher
