// Values of dlaunch's options that have a form of their own. Pure. Each gives kInvalidArgument with the option, what
// was typed and what would work; the value is then as it was.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// The error of a value that means nothing to an option: "--bind 'x': give core, numa or none".
absl::Status WrongValue(const std::string& option, const std::string& value, const std::string& instead);

// Every option that is a time, of dlaunch and its subcommands: "10", "2.5s", "500ms", "10m", "1h", from 0 to a day;
// seconds where no unit is given.
absl::StatusOr<std::chrono::milliseconds> ReadTime(const std::string& option, const std::string& text);
// A whole number from `min` to `max`; `option` without its dashes.
absl::Status ReadCount(const std::string& option, const std::string& text, int max, std::optional<int>* out,
                       int min = 1);
// --env: "A=1", each. Adds to `environment`.
absl::Status ReadEnvironment(const std::vector<std::string>& texts,
                             std::vector<std::pair<std::string, std::string>>* environment);
// --port-range: "29400:29499".
absl::Status ReadPorts(const std::string& text, std::optional<PortRange>* out);
// --log-rate: "5000", "64K", "1M".
absl::Status ReadRate(const std::string& text, uint64_t* out);
// --env-pass: "A,B_*". Adds to `names`.
absl::Status ReadPassedVariables(const std::string& text, std::vector<std::string>* names);
// --metrics: "9400", "0.0.0.0:9400", "[::1]:9400". A port alone is this machine's own.
absl::Status ReadMetrics(const std::string& text, std::string* address);
// --rank-order: "given", "natural", "file:FILE".
absl::Status ReadRankOrder(const std::string& text, Options* options);
// --bind: "core", "numa", "none".
absl::Status ReadBind(const std::string& text, Bind* bind);
// The forms of -n as one: "--np=2" for "-n2", "-np2", "-n=2" and "-np=2", and "--np" for "-n" and "-np", whose value is
// the next word. Any other word stays as it is.
std::string WithLongCount(std::string argument);
// --stopped: "kill", "wait".
absl::Status ReadStopped(const std::string& text, Stopped* stopped);
absl::Status ReadMpi(const std::string& text, Mpi* mpi);
// --torch-backend: "cohort", "torch". Adds COHORT_TORCH_BACKEND to `environment`, which must not say otherwise.
absl::Status ReadTorchBackend(const std::string& text, std::vector<std::pair<std::string, std::string>>* environment);
// --check: "nan", "results", or both with a comma. Adds COHORT_CHECK to `environment`, which must not say otherwise.
absl::Status ReadCheck(const std::string& text, std::vector<std::pair<std::string, std::string>>* environment);

}  // namespace cohort::launcher
