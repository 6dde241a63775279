// schedule: lists, draws, proves and times the schedules of pipelines.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/trainer/parallel/pipeline/schedule/checker.h"
#include "cohort/trainer/parallel/pipeline/schedule/picture.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"
#include "cohort/trainer/parallel/pipeline/schedule/text.h"
#include "tools/program/arguments.h"
#include "tools/program/program.h"
#include "tools/schedule/predicted_schedule.h"
#include "tools/schedule/proofs.h"

namespace cohort::tools {
namespace {

using trainer::Costs;
using trainer::Schedule;
using trainer::ScheduleInfo;
using trainer::ScheduleReport;
using trainer::ScheduleRequest;
using trainer::Share;
using trainer::Timing;

constexpr const char* kExamples =
    "Examples:\n"
    "  schedule list\n"
    "  schedule show 1f1b --ranks 4 --micro-batches 8\n"
    "  schedule show interleaved --ranks 4 --stages 8 --micro-batches 8 --rank 1\n"
    "  schedule show --file mine.csv\n"
    "  schedule check\n"
    "  schedule check zbv --ranks 1-32 --micro-batches 64\n"
    "  schedule check --file mine.csv\n"
    "  schedule simulate zb_h1 --ranks 8 --micro-batches 32 --message 1\n"
    "  schedule simulate 1f1b --ranks 4 --forward 700 --backward 1500 --trace job.pftrace\n"
    "  schedule parse mine.csv\n"
    "\n"
    "Text has a line for each rank and a cell for each action, as PyTorch's tables: 0F3 is the forward pass of\n"
    "micro-batch 3 through stage 0, B a backward pass, I and W its two parts. Text with nothing else is completed:\n"
    "parse prints it with sends, receives (SEND_F, RECV_F, SEND_B, RECV_B), UNSHARD, RESHARD and REDUCE_GRAD.\n";

constexpr int64_t kMostColumns = 4096;
constexpr size_t kMostText = size_t{64} << 20;
constexpr int64_t kMostCost = 1000000000;

struct Options {
  std::string name;
  std::string file;  // instead of the name
  int ranks = 4;
  int stages = 0;  // 0: as few as the schedule may have
  int micro_batches = 8;
  int rank = -1;
  std::string rank_range = "1-16";
  std::string micro_batch_range = "1-64";
  int stages_per_rank = 0;
  Costs costs;
  std::string trace;  // a file; empty: none is written
};

int Fail(const std::string& message) {
  std::fprintf(stderr, "schedule: %s\n", Escaped(message).c_str());
  return 1;
}

int Fail(const absl::Status& status) { return Fail(std::string(status.message())); }

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "r");
  if (file == nullptr) return absl::NotFoundError(path + ": " + std::strerror(errno));
  std::string text;
  char block[65536];
  size_t read = 0;
  while (text.size() <= kMostText && (read = std::fread(block, 1, sizeof block, file)) > 0) text.append(block, read);
  const bool failed = std::ferror(file) != 0;
  if (file != stdin) std::fclose(file);
  if (failed) return absl::UnavailableError(path + " can't be read");
  if (text.size() > kMostText) return absl::InvalidArgumentError(path + " is longer than 64 MiB");
  return text;
}

ScheduleRequest RequestOf(const Options& options, const ScheduleInfo* info) {
  const int least = info == nullptr ? 1 : info->traits.least_stages_per_rank;
  return {options.ranks, options.stages > 0 ? options.stages : options.ranks * least, options.micro_batches};
}

absl::StatusOr<Schedule> Load(const Options& options) {
  if (options.file.empty()) {
    if (options.name.empty()) return absl::InvalidArgumentError("needs the name of a schedule, or --file");
    return BuildSchedule(options.name, RequestOf(options, trainer::FindSchedule(options.name)));
  }
  COHORT_ASSIGN_OR_RETURN(const std::string text, ReadText(options.file));
  COHORT_ASSIGN_OR_RETURN(Schedule schedule, trainer::ParseSchedule(text));
  schedule.name = options.file;
  return schedule;
}

std::string Sizes(const Schedule& schedule) {
  return Escaped(schedule.name) + ", " + std::to_string(schedule.ranks) +
         (schedule.ranks == 1 ? " rank, " : " ranks, ") + std::to_string(schedule.stages) +
         (schedule.stages == 1 ? " stage, " : " stages, ") + std::to_string(schedule.micro_batches) +
         (schedule.micro_batches == 1 ? " micro-batch" : " micro-batches");
}

// The line that says whether a schedule is right and what it costs; false when it is not.
bool PrintProof(const Schedule& schedule) {
  const absl::StatusOr<ScheduleReport> report = CheckSchedule(schedule);
  if (!report.ok()) {
    std::printf("%s: WRONG: %s\n", Sizes(schedule).c_str(), std::string(report.status().message()).c_str());
    return false;
  }
  const int most = *std::max_element(report->peak_activations.begin(), report->peak_activations.end());
  std::printf("%s: right; %lld passes, %lld messages, at most %lld turns and %d activations a rank\n",
              Sizes(schedule).c_str(), static_cast<long long>(report->passes), static_cast<long long>(report->messages),
              static_cast<long long>(report->turns), most);
  return true;
}

int List() {
  std::printf("%-12s %-16s %s\n", "schedule", "stages a rank", "backward pass");
  for (const ScheduleInfo& info : trainer::Schedules()) {
    const auto& [least, most, folded, splits] = info.traits;
    const std::string stages =
        most == least ? std::to_string(least) + (folded ? ", there and back" : "") : std::to_string(least) + " or more";
    std::printf("%-12s %-16s %s\n", std::string(info.name).c_str(), stages.c_str(), splits ? "in two parts" : "whole");
  }
  return 0;
}

int Show(const Options& options) {
  const absl::StatusOr<Schedule> schedule = Load(options);
  if (!schedule.ok()) return Fail(schedule.status());
  if (options.rank >= schedule->ranks) return Fail("--rank must be less than the number of ranks");
  const bool right = CheckSchedule(*schedule).ok();
  if (options.rank >= 0) {
    for (const trainer::Action& action : schedule->by_rank[static_cast<size_t>(options.rank)]) {
      std::printf("%s\n", trainer::ToString(action).c_str());
    }
  } else if (right) {
    const absl::StatusOr<Timing> timing = SimulateSchedule(*schedule, options.costs);
    if (!timing.ok()) return Fail(timing.status());
    if (timing->total > kMostColumns) {
      return Fail("the picture would be " + std::to_string(timing->total) + " columns wide; the most are " +
                  std::to_string(kMostColumns));
    }
    std::printf("%s", DrawSchedule(*schedule, *timing).c_str());
  }
  return PrintProof(*schedule) ? 0 : 1;
}

int CheckAll(const Options& options) {
  const absl::StatusOr<Range> ranks = ReadRange(options.rank_range, 256);
  if (!ranks.ok()) return Fail("--ranks " + std::string(ranks.status().message()));
  const absl::StatusOr<Range> micro_batches = ReadRange(options.micro_batch_range, 4096);
  if (!micro_batches.ok()) return Fail("--micro-batches " + std::string(micro_batches.status().message()));
  if (!options.name.empty() && trainer::FindSchedule(options.name) == nullptr) {
    return Fail(trainer::BuildSchedule(options.name, {}).status());
  }
  bool right = true;
  for (const ScheduleInfo& info : trainer::Schedules()) {
    if (!options.name.empty() && info.name != options.name) continue;
    const int stages = options.stages_per_rank > 0 ? options.stages_per_rank : info.traits.least_stages_per_rank;
    const absl::StatusOr<int> proofs = ProveSchedule(info, *ranks, *micro_batches, stages);
    if (proofs.ok()) {
      std::printf("%s: %d proofs\n", std::string(info.name).c_str(), *proofs);
    } else {
      right = false;
      std::printf("WRONG: %s\n", std::string(proofs.status().message()).c_str());
    }
  }
  return right ? 0 : 1;
}

int Check(const Options& options) {
  if (options.file.empty()) return CheckAll(options);
  if (!options.name.empty()) return Fail("give a name or --file, not both");
  const absl::StatusOr<Schedule> schedule = Load(options);
  if (!schedule.ok()) return Fail(schedule.status());
  return PrintProof(*schedule) ? 0 : 1;
}

std::string Percent(const Share& share) {
  char text[64];
  std::snprintf(text, sizeof text, "%s (%.1f %%)", ToText(share).c_str(), 100 * share.value());
  return text;
}

int Simulate(const Options& options) {
  const absl::StatusOr<Schedule> schedule = Load(options);
  if (!schedule.ok()) return Fail(schedule.status());
  const absl::StatusOr<ScheduleReport> report = CheckSchedule(*schedule);
  if (!report.ok()) return PrintProof(*schedule) ? 0 : 1;
  const absl::StatusOr<Timing> timing = SimulateSchedule(*schedule, options.costs);
  if (!timing.ok()) return Fail(timing.status());
  if (!options.trace.empty()) {
    const absl::StatusOr<std::string> place = TraceSchedule(options.trace, *schedule, *timing);
    if (!place.ok()) return Fail("--trace: " + std::string(place.status().message()));
    if (!place->empty()) std::fprintf(stderr, "schedule: the prediction begins %s\n", Escaped(*place).c_str());
  }
  const ScheduleInfo* const info = options.file.empty() ? trainer::FindSchedule(options.name) : nullptr;
  const ScheduleRequest request{schedule->ranks, schedule->stages, schedule->micro_batches};
  const std::optional<Share> formula = info == nullptr ? std::nullopt : info->idle(request);
  std::printf("%s: %lld units; idle %s, formula %s\n", Sizes(*schedule).c_str(), static_cast<long long>(timing->total),
              Percent(timing->idle()).c_str(), formula ? Percent(*formula).c_str() : "-");
  std::printf("%-6s %12s %12s %17s %8s\n", "rank", "busy", "idle", "peak activations", "formula");
  for (int rank = 0; rank < schedule->ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const std::optional<int> peak = info == nullptr ? std::nullopt : info->peak(request, rank);
    std::printf("%-6d %12lld %12lld %17d %8s\n", rank, static_cast<long long>(timing->busy[r]),
                static_cast<long long>(timing->total - timing->busy[r]), report->peak_activations[r],
                peak ? std::to_string(*peak).c_str() : "-");
  }
  return 0;
}

int Parse(const Options& options) {
  const absl::StatusOr<Schedule> schedule = Load(options);
  if (!schedule.ok()) return Fail(schedule.status());
  if (const auto report = CheckSchedule(*schedule); !report.ok()) return Fail(report.status());
  std::printf("%s", trainer::ToText(*schedule).c_str());
  return 0;
}

void AddSource(CLI::App* command, Options& options) {
  command->add_option("name", options.name, "a schedule that `schedule list` names");
  command->add_option("--file", options.file, "a schedule as text instead; - is the standard input")
      ->check(NotEmpty("the name of a file"))
      ->type_name("FILE");
}

void AddSizes(CLI::App* command, Options& options) {
  command->add_option("--ranks", options.ranks, "of the pipeline")
      ->check(Whole(1, trainer::kMostPipelineRanks))
      ->capture_default_str();
  command->add_option("--stages", options.stages, "of the whole pipeline; as few as can be unless given")
      ->check(Whole(1, trainer::kMostStages));
  command->add_option("--micro-batches", options.micro_batches, "of a step")
      ->check(Whole(1, trainer::kMostMicroBatches))
      ->capture_default_str();
}

void AddCosts(CLI::App* command, Options& options) {
  const auto add = [&](const char* name, int64_t& cost, const char* text) {
    command->add_option(name, cost, text)->check(Whole(0, kMostCost))->capture_default_str();
  };
  add("--forward", options.costs.pass.forward, "units of time of F");
  add("--backward", options.costs.pass.backward, "of B");
  add("--input-gradient", options.costs.pass.input_gradient, "of I");
  add("--weight-gradient", options.costs.pass.weight_gradient, "of W");
  add("--message", options.costs.message, "of a message between ranks");
  command->add_flag("--sends-wait", options.costs.sends_wait,
                    "a send waits for its receiver, and a rank for all messages of a turn");
}

int Main(int argc, char** argv) {
  CLI::App app("Lists, draws, proves and times the schedules of pipelines.");
  app.require_subcommand(1);
  Options options;
  CLI::App* list = app.add_subcommand("list", "The schedules");
  CLI::App* show = app.add_subcommand("show", "Draw a schedule, or list the actions of one rank, and prove it");
  AddSource(show, options);
  AddSizes(show, options);
  AddCosts(show, options);
  show->add_option("--rank", options.rank, "list this rank's actions instead of drawing all")
      ->check(Whole(0, trainer::kMostPipelineRanks - 1));
  CLI::App* check = app.add_subcommand("check", "Prove schedules for many sizes, or one given as text");
  AddSource(check, options);
  check->add_option("--ranks", options.rank_range, "a number or a range")->capture_default_str();
  check->add_option("--micro-batches", options.micro_batch_range, "a number or a range")->capture_default_str();
  check->add_option("--stages-per-rank", options.stages_per_rank, "as few as can be unless given")
      ->check(Whole(1, 1024));
  CLI::App* simulate = app.add_subcommand("simulate", "Time a schedule, beside the formulas of equal stages");
  AddSource(simulate, options);
  AddSizes(simulate, options);
  AddCosts(simulate, options);
  simulate
      ->add_option("--trace", options.trace,
                   "write the passes for ui.perfetto.dev, a unit a microsecond; below the run's, if FILE is a trace of "
                   "dlaunch")
      ->check(NotEmpty("the name of a file"))
      ->type_name("FILE");
  CLI::App* parse = app.add_subcommand("parse", "Read a schedule as text, complete and prove it, print it as text");
  parse->add_option("file", options.file, "- is the standard input")
      ->required()
      ->check(NotEmpty("the name of a file"))
      ->type_name("FILE");
  app.footer(kExamples);  // behind the commands, which would inherit it
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  if (*list) return List();
  if (*show) return Show(options);
  if (*check) return Check(options);
  if (*simulate) return Simulate(options);
  return Parse(options);
}

}  // namespace
}  // namespace cohort::tools

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("schedule", [=] { return cohort::tools::Main(argc, argv); });
}
