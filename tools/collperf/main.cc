// collperf: measures collective operations among the ranks of a job.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/env.h"
#include "tools/collperf/algorithms.h"
#include "tools/collperf/cost.h"
#include "tools/collperf/options.h"
#include "tools/collperf/peers/comparison.h"
#include "tools/collperf/peers/ours.h"
#include "tools/collperf/point.h"
#include "tools/collperf/rank_session.h"
#include "tools/collperf/report.h"
#include "tools/measure/clock.h"
#include "tools/measure/text.h"
#include "tools/program/program.h"

namespace cohort::collperf {
namespace {

std::string CommandOf(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) command += (i == 0 ? "" : " ") + std::string(argv[i]);
  return command;
}

absl::StatusOr<RunFacts> Gather(RankSession& session, const std::string& command, bool staged) {
  RunFacts facts;
  facts.ranks = session.ranks();
  facts.hosts = session.runtime().node_count();
  facts.cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  facts.host = host;
  facts.gate = session.gate().Describe();
  facts.date = measure::UtcText("%Y-%m-%d %H:%M UTC");
  facts.command = command;
  facts.tuning_table = session.world().tuning();
  COHORT_ASSIGN_OR_RETURN(facts.transport, session.TransportNames());
  if (session.device() == nullptr) return facts;
  facts.device = session.DescribeDevice();
  COHORT_ASSIGN_OR_RETURN(const std::string_view service,
                          session.DeviceService(comm::CollectiveKind::kAllReduce, comm::DataType::kFloat32));
  if (service == "nccl" && !staged) facts.transport = service;  // else that of host memory
  return facts;
}

// Prints on rank 0 only.
void Say(const RankSession& session, const std::string& text) {
  if (session.rank() != 0) return;
  std::fputs(text.c_str(), stdout);
  tools::FlushOutput("collperf");
}

absl::Status MeasureOperation(RankSession& session, const Options& options, const RunFacts& facts,
                              measure::Operation operation, std::vector<Result>* results) {
  const bool sized = measure::HasBlocks(operation);
  const std::vector<int64_t> sizes = sized ? options.sizes : std::vector<int64_t>{0};
  COHORT_ASSIGN_OR_RETURN(const Buffers buffers, Buffers::Make(session, options, operation, sizes.back()));
  const size_t types = sized ? options.types.size() : 1;
  const size_t ops = measure::Reduces(operation) ? options.ops.size() : 1;
  for (size_t i = 0; i < types * ops; ++i) {
    const NamedType& type = options.types[i / ops];
    const NamedOp& op = options.ops[i % ops];
    // With several of them, only the pairs that exist.
    if (types * ops > 1 && ops > 1 && comm::IsBitwise(op.op) && comm::IsFloat(type.dtype)) continue;
    for (const int64_t bytes : sizes) {
      if (sized && bytes < type.layout.bytes) continue;
      COHORT_ASSIGN_OR_RETURN(Result result, Measure(session, options, buffers, operation, type, op, bytes));
      result.transport = facts.transport;
      Say(session, RowText(options, result));
      results->push_back(result);
    }
  }
  return absl::OkStatus();
}

bool LacksPeer(RankSession& session, measure::Operation operation) {
  return operation == measure::Operation::kSendRecv && session.device() != nullptr && session.ranks() == 1;
}

absl::Status CalibrateGroup(RankSession& session) {
  const uint64_t begin = measure::Ticks();
  COHORT_ASSIGN_OR_RETURN(const std::string table, comm::Calibrate(session.world()));
  const double seconds = static_cast<double>(measure::Ticks() - begin) * measure::NanosecondsPerTick() / 1e9;
  Say(session, "# calibrated in " + measure::Fixed(seconds, 2) + " s; the table in force:\n# " + table + "\n");
  return absl::OkStatus();
}

absl::Status Run(const Options& options, const std::string& command, int64_t* wrong) {
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<RankSession> session,
                          RankSession::Start(options.transport, options.memory));
  if (options.root >= session->ranks()) {
    return absl::InvalidArgumentError("-r " + std::to_string(options.root) + " is no rank of a group of " +
                                      std::to_string(session->ranks()));
  }
  if (session->rank() == 0) COHORT_RETURN_IF_ERROR(CheckFiles(options));
  if (options.calibrate) COHORT_RETURN_IF_ERROR(CalibrateGroup(*session));
  if (session->device() != nullptr) COHORT_RETURN_IF_ERROR(session->ConnectDevices(options.algorithm));
  COHORT_ASSIGN_OR_RETURN(const RunFacts facts, Gather(*session, command, !options.algorithm.empty()));
  Say(*session, HeadText(options, facts));
  if (options.cost) {
    COHORT_ASSIGN_OR_RETURN(const Cost cost, MeasureCost(*session));
    Say(*session, CostText(cost));
  }
  if (options.each_algorithm) {
    COHORT_RETURN_IF_ERROR(MeasureAlgorithms(*session, options, facts.transport));
    return session->Finish();
  }
  std::vector<Result> results;
  for (const measure::Operation operation : options.operations) {
    if (LacksPeer(*session, operation)) {
      Say(*session, "# send_recv is left out: on device memory one rank alone has no peer\n");
      continue;
    }
    COHORT_RETURN_IF_ERROR(MeasureOperation(*session, options, facts, operation, &results));
  }
  for (const Result& result : results) *wrong += std::max<int64_t>(result.wrong, 0);
  Say(*session, SummaryText(results));
  Say(*session, DeterminismText(options, results));
  if (*wrong > 0) Say(*session, "# " + std::to_string(*wrong) + " elements were wrong\n");
  if (session->rank() == 0) COHORT_RETURN_IF_ERROR(WriteFiles(options, facts, results));
  return session->Finish();
}

// A rank that leaves the word to another one ends after it, so that dlaunch first receives the end that has its cause
// with it. The other's end then ends this one. If nothing has ended it five seconds later, nobody speaks for this rank.
void LetSpeakerEndFirst() { std::this_thread::sleep_for(std::chrono::seconds(5)); }

int Main(int argc, char** argv) {
  // --serve MEMORY RANKS SLOT: as a system of a comparison.
  if (argc == 5 && std::string_view(argv[1]) == "--serve") {
    return ServeComparison(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  }
  const absl::StatusOr<runtime::Environment> environment = runtime::Environment::Read();
  // One rank of a host speaks for those that would all say the same.
  const bool speaks = !environment.ok() || environment->local_rank.value_or(0) == 0;
  const Parsed parsed = ParseCommandLine(argc, argv);
  if (parsed.ends) {
    if (!speaks && parsed.code != 0) LetSpeakerEndFirst();
    if (speaks || parsed.code != 0) std::fputs(parsed.text.c_str(), parsed.code == 0 ? stdout : stderr);
    return parsed.code;
  }
  if (!parsed.options.peers.empty()) {
    if (!environment.ok()) return Compare(parsed.options, CommandOf(argc, argv));
    const bool ours = environment->local_rank.has_value();
    const std::string other = environment->allow_single ? "" : environment->other_launcher;
    if (!ours && other.empty()) return Compare(parsed.options, CommandOf(argc, argv));
    if (!speaks) LetSpeakerEndFirst();
    const std::string launcher = ours ? "dlaunch" : "a launcher (" + tools::Escaped(other) + ")";
    std::fprintf(stderr, "collperf: --peers starts ranks of its own: run it without %s\n", launcher.c_str());
    return 2;
  }
  int64_t wrong = 0;
  const absl::Status status = Run(parsed.options, CommandOf(argc, argv), &wrong);
  if (!status.ok()) {
    const bool local = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
    if (!speaks && local) LetSpeakerEndFirst();
    std::fprintf(stderr, "collperf: %s\n", tools::Escaped(std::string(status.message())).c_str());
    return local ? 2 : 1;
  }
  if (wrong > 0 && !speaks) LetSpeakerEndFirst();
  return wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace cohort::collperf

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("collperf", [=] { return cohort::collperf::Main(argc, argv); });
}
