#include "cohort/runtime/env.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {
namespace {

constexpr size_t kMaxAddress = 107;  // sun_path without its first byte
constexpr size_t kMaxPath = 4095;

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here changes the environment
  return value == nullptr ? std::string_view() : std::string_view(value);
}

absl::Status Refuse(const char* name, std::string_view value, const std::string& allowed) {
  return absl::InvalidArgumentError(std::string(name) + "=" + std::string(value.substr(0, 200)) + ": must be " +
                                    allowed);
}

absl::StatusOr<std::optional<int64_t>> Number(const char* name, int64_t low, int64_t high) {
  const std::string_view value = Variable(name);
  if (value.empty()) return std::optional<int64_t>();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < low || number > high) {
    return Refuse(name, value, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return std::optional<int64_t>(number);
}

absl::StatusOr<std::string> Library(const char* name) {
  const std::string_view value = Variable(name);
  if (value.size() > kMaxPath) return Refuse(name, value, "the path or soname of a library, at most 4095 bytes");
  return std::string(value);
}

// These change NCCL's choice of algorithm or the layout of its messages: ranks that differ in them hang.
constexpr const char* kNcclSettings[] = {"NCCL_ALGO",           "NCCL_BUFFSIZE",          "NCCL_LAUNCH_ORDER_IMPLICIT",
                                         "NCCL_LL128_BUFFSIZE", "NCCL_LL_BUFFSIZE",       "NCCL_MAX_CTAS",
                                         "NCCL_MAX_NCHANNELS",  "NCCL_MIN_CTAS",          "NCCL_MIN_NCHANNELS",
                                         "NCCL_NTHREADS",       "NCCL_P2P_NET_CHUNKSIZE", "NCCL_PROTO"};

std::string NcclSettings() {
  std::string text;
  for (const char* name : kNcclSettings) {
    const std::string_view value = Variable(name).substr(0, 200);
    if (value.empty()) continue;
    if (!text.empty()) text += ' ';
    text.append(name).append("=").append(value);
  }
  return text;
}

absl::StatusOr<std::string> PortRange(const char* name) {
  const std::string_view value = Variable(name);
  if (value.empty()) return std::string();
  int first = 0, last = 0;
  const char* const end = value.data() + value.size();
  const auto [dash, error] = std::from_chars(value.data(), end, first);
  if (error == std::errc() && dash != end && *dash == '-') {
    const auto [rest, other] = std::from_chars(dash + 1, end, last);
    if (other == std::errc() && rest == end && first >= 1 && first <= last && last <= 65535) return std::string(value);
  }
  return Refuse(name, value, "two ports, the first not above the last, such as 20000-20100");
}

bool IsIpAddress(const std::string& text) {
  const std::string without_scope = text.substr(0, text.find('%'));
  in6_addr bytes{};  // either kind fits
  return inet_pton(AF_INET, text.c_str(), &bytes) == 1 || inet_pton(AF_INET6, without_scope.c_str(), &bytes) == 1;
}

absl::StatusOr<std::vector<std::string>> IpAddresses(const char* name) {
  const std::string_view value = Variable(name);
  std::vector<std::string> addresses;
  for (size_t begin = 0; begin < value.size();) {
    const size_t comma = std::min(value.find(',', begin), value.size());
    addresses.emplace_back(value.substr(begin, comma - begin));
    const bool twice = std::count(addresses.begin(), addresses.end(), addresses.back()) > 1;
    if (!IsIpAddress(addresses.back()) || twice || comma + 1 == value.size()) {
      return Refuse(name, value, "an IPv4 or IPv6 address of this host, such as 10.0.0.1, or several, with commas");
    }
    begin = comma + 1;
  }
  return addresses;
}

absl::StatusOr<std::string> Transports(const char* name) {
  const std::string_view value = Variable(name);
  const bool names = value.find_first_not_of("abcdefghijklmnopqrstuvwxyz,") == std::string_view::npos;
  if (names && value.size() < 100) return std::string(value);
  return Refuse(name, value, "names of transports, such as tcp or ucx,tcp");
}

absl::StatusOr<std::optional<Checks>> ChecksIn(const char* name) {
  const std::string_view value = Variable(name);
  if (value.empty()) return std::optional<Checks>();
  Checks checks;
  for (size_t begin = 0; begin <= value.size();) {
    const size_t comma = std::min(value.find(',', begin), value.size());
    const std::string_view word = value.substr(begin, comma - begin);
    bool* const check = word == "nan" ? &checks.nan : word == "results" ? &checks.results : nullptr;
    if (check == nullptr || *check) return Refuse(name, value, "nan, results or nan,results");
    *check = true;
    begin = comma + 1;
  }
  return std::optional<Checks>(checks);
}

constexpr int kMostRank = 1 << 24;

// "0,4-7"
absl::StatusOr<std::vector<int>> Ranks(const char* name) {
  constexpr size_t kMostRanks = 65536;
  const std::string_view value = Variable(name);
  std::vector<int> ranks;
  for (size_t begin = 0; begin < value.size();) {
    const size_t comma = std::min(value.find(',', begin), value.size());
    int first = 0, last = 0;
    const char* const end = value.data() + comma;
    auto [at, error] = std::from_chars(value.data() + begin, end, first);
    last = first;
    if (error == std::errc() && at != end && *at == '-') {
      const auto [behind, other] = std::from_chars(at + 1, end, last);
      at = behind, error = other;
    }
    const bool right = error == std::errc() && at == end && first >= 0 && first <= last && last < kMostRank &&
                       comma + 1 != value.size() && static_cast<size_t>(last - first) + ranks.size() < kMostRanks;
    if (!right) return Refuse(name, value, "numbers of ranks, such as 3 or 0,4-7");
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
    begin = comma + 1;
  }
  return ranks;
}

absl::StatusOr<std::string> Path(const char* name) {
  const std::string_view value = Variable(name);
  if (value.size() > kMaxPath) return Refuse(name, value, "a path of at most 4095 bytes");
  return std::string(value);
}

// Launchers tell each process the number of processes, beside a variable that only such a process has. SLURM_NTASKS is
// not among them: a batch script has it too, in which one process runs.
constexpr struct {
  const char* size;
  const char* rank;
} kOtherLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},  // mpirun of Open MPI
    {"PMI_SIZE", "PMI_RANK"},                          // mpiexec of MPICH and Intel MPI, srun --mpi=pmi2
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},          // srun
    {"WORLD_SIZE", "RANK"},                            // torchrun
};

// Other programs' variables: what is no number says nothing.
int64_t NumberOrZero(std::string_view value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc() && end == value.data() + value.size() ? number : 0;
}

std::string OtherLauncher() {
  for (const auto& launcher : kOtherLaunchers) {
    const std::string_view size = Variable(launcher.size);
    if (!Variable(launcher.rank).empty() && NumberOrZero(size) > 1) {
      return std::string(launcher.size).append("=").append(size);
    }
  }
  // PMIx names no size; but who is not the first is not alone.
  const std::string_view rank = Variable("PMIX_RANK");
  return NumberOrZero(rank) > 0 ? std::string("PMIX_RANK=").append(rank) : std::string();
}

std::vector<std::string> NamesThatBeginWith(std::string_view prefix) {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with(prefix)) names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

// Secrets of users are not among them.
std::vector<std::string> PlaceVariables() {
  constexpr std::string_view kNames[] = {"RANK",        "WORLD_SIZE",      "LOCAL_RANK",        "LOCAL_WORLD_SIZE",
                                         "GROUP_RANK",  "NODE_RANK",       "MASTER_ADDR",       "GROUP_WORLD_SIZE",
                                         "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"};
  constexpr std::string_view kOthers[] = {"TORCHELASTIC_ERROR_FILE", "COHORT_AGENT", "COHORT_REPLAY"};
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool ours = name.starts_with("COHORT_") || name.starts_with("TORCHELASTIC_") ||
                      std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
    const bool other =
        name.starts_with("COHORT_TAPE") || std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
    if (ours && !other) variables.emplace_back(text);
  }
  return variables;
}

absl::Status ReadTape(Environment* environment) {
  COHORT_ASSIGN_OR_RETURN(environment->replay, Path("COHORT_REPLAY"));
  COHORT_ASSIGN_OR_RETURN(environment->tape_folder, Path("COHORT_TAPE"));
  COHORT_ASSIGN_OR_RETURN(environment->tape_ranks, Ranks("COHORT_TAPE_RANKS"));
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> last, Number("COHORT_TAPE_LAST", 0, 1'000'000'000));
  environment->tape_last = static_cast<uint64_t>(last.value_or(0));
  if (!environment->tape_folder.empty()) environment->place_variables = PlaceVariables();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Environment> Environment::Read() {
  Environment environment;
  const std::string_view agent = Variable("COHORT_AGENT");
  if (!agent.empty() && (agent[0] != '@' || agent.size() < 2 || agent.size() > kMaxAddress)) {
    return Refuse("COHORT_AGENT", agent, "'@' and the name of an abstract socket, 2 to 107 bytes, as dlaunch sets it");
  }
  environment.agent = std::string(agent);
  environment.tuning = std::string(Variable("COHORT_TUNING"));
  environment.job_id = std::string(Variable("COHORT_JOB_ID"));
  environment.other_launcher = OtherLauncher();
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> allow_single, Number("COHORT_ALLOW_SINGLE", 0, 1));
  environment.allow_single = allow_single.value_or(0) == 1;
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> local_rank, Number("COHORT_LOCAL_RANK", 0, kMaxLocalRanks - 1));
  if (local_rank.has_value()) environment.local_rank = static_cast<int>(*local_rank);
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> timeout, Number("COHORT_INIT_TIMEOUT_MS", 1, 86'400'000));
  if (timeout.has_value()) environment.init_timeout = std::chrono::milliseconds(*timeout);
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> detect, Number("COHORT_DETECT_DEADLOCKS", 0, 1));
  if (detect.has_value()) environment.detect_deadlocks = *detect == 1;
  COHORT_ASSIGN_OR_RETURN(environment.checks, ChecksIn("COHORT_CHECK"));
  COHORT_RETURN_IF_ERROR(ReadTape(&environment));
  COHORT_ASSIGN_OR_RETURN(environment.ucx_library, Library("COHORT_UCX_LIBRARY"));
  COHORT_ASSIGN_OR_RETURN(environment.nccl_library, Library("COHORT_NCCL_LIBRARY"));
  COHORT_ASSIGN_OR_RETURN(environment.cuda_library, Library("COHORT_CUDA_LIBRARY"));
  environment.nccl_settings = NcclSettings();
  COHORT_ASSIGN_OR_RETURN(environment.port_range, PortRange("COHORT_PORT_RANGE"));
  COHORT_ASSIGN_OR_RETURN(environment.data_addresses, IpAddresses("COHORT_DATA_ADDRESS"));
  COHORT_ASSIGN_OR_RETURN(environment.transports, Transports("COHORT_TRANSPORTS"));
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> encrypt, Number("COHORT_ENCRYPT_DATA", 0, 1));
  environment.encrypt_data = encrypt.value_or(0) == 1;
  COHORT_ASSIGN_OR_RETURN(const std::optional<int64_t> any_version, Number("COHORT_UCX_ANY_VERSION", 0, 1));
  environment.ucx_any_version = any_version.value_or(0) == 1;
  environment.ucx_variables = NamesThatBeginWith("UCX_");
  return environment;
}

}  // namespace cohort::runtime
