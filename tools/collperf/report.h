// Prints and writes collperf's results.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/collperf/options.h"
#include "tools/collperf/point.h"

namespace cohort::collperf {

// The facts that hold for all results of a run.
struct RunFacts {
  int ranks = 1;
  int hosts = 1;
  int cpus = 1;
  std::string host;
  std::string transport;
  std::string device = {};  // and who serves its memory; empty: calls are on host memory
  std::string gate;
  std::string date;
  std::string command;
  std::string tuning_table;  // that algorithms are chosen by, in the grammar of comm/select/tuning.h
};

// The lines above the table, without results.
std::string HeadText(const Options& options, const RunFacts& facts);
std::string RowText(const Options& options, const Result& result);
// Below the table: the mean bus bandwidth of each operation over its sizes, as nccl-tests print it; and, where most
// times spread so far that their medians say nothing, that the machine is busy.
std::string SummaryText(const std::vector<Result>& results);
// Below the table: what the level of determinism costs; empty where nothing was compared.
std::string DeterminismText(const Options& options, const std::vector<Result>& results);

// A row for each result of a run or a comparison, with the same names as in JSON. What is not known is empty.
std::string CsvText(const std::vector<Result>& results);
std::string JsonText(const Options& options, const RunFacts& facts, const std::vector<Result>& results);
std::string PlotText(const Options& options, const RunFacts& facts, const std::vector<Result>& results);

// Whether they could be written, before anything is measured.
absl::Status CheckFiles(const Options& options);
// Writes those files that the options name. kInvalidArgument or kPermissionDenied with the path.
absl::Status WriteFiles(const Options& options, const RunFacts& facts, const std::vector<Result>& results);

}  // namespace cohort::collperf
