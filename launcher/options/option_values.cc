#include "cohort/launcher/options/option_values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

absl::Status WrongValue(const std::string& option, const std::string& value, const std::string& instead) {
  return InvalidArgumentError(Remedy::kWrongValue, option + " '" + value + "': " + instead);
}

absl::StatusOr<std::chrono::milliseconds> ReadTime(const std::string& option, const std::string& text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1}, {"s", 1000}, {"", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  constexpr double kMost = 24 * 3'600'000;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  for (const auto& [name, milliseconds] : kUnits) {
    if (error != std::errc() || std::string_view(unit, static_cast<size_t>(end - unit)) != name) continue;
    if (value >= 0 && value * milliseconds <= kMost)
      return std::chrono::milliseconds(std::llround(value * milliseconds));
  }
  return WrongValue(option, text, "give a time up to a day, such as 2.5 (seconds), 500ms, 10m or 1h");
}

absl::Status ReadCount(const std::string& option, const std::string& text, int max, std::optional<int>* out, int min) {
  if (const auto value = ReadWholeNumber(text, min, max)) {
    *out = value;
    return absl::OkStatus();
  }
  return WrongValue("--" + option, text,
                    "give a whole number from " + std::to_string(min) + " to " + std::to_string(max));
}

absl::Status ReadPorts(const std::string& text, std::optional<PortRange>* out) {
  PortRange range;
  const char* const end = text.data() + text.size();
  const auto [colon, error] = std::from_chars(text.data(), end, range.first);
  bool good = error == std::errc() && colon != end && *colon == ':';
  if (good) {
    const auto [stop, second] = std::from_chars(colon + 1, end, range.last);
    good = second == std::errc() && stop == end;
  }
  if (!good || range.first < 1 || range.last < range.first || range.last > 65535) {
    return WrongValue("--port-range", text, "give the first and the last TCP port, such as 29400:29499");
  }
  if (range.first == range.last) {
    return InvalidArgumentError(Remedy::kOnePort,
                                "--port-range '" + text +
                                    "': one port is too few, since dlaunch listens itself and MASTER_PORT is "
                                    "another; give at least two, such as 29400:29401");
  }
  *out = range;
  return absl::OkStatus();
}

absl::Status ReadRate(const std::string& text, uint64_t* out) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  auto [unit, error] = std::from_chars(text.data(), end, value);
  const std::string_view units = "KMG";
  const size_t power = unit != end ? units.find(*unit) + 1 : 0;
  if (unit != end && power > 0) ++unit;
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (error != std::errc() || unit != end || value < 1 || value > kMost || (value << (10 * power)) > kMost) {
    return WrongValue("--log-rate", text, "give bytes a second, at most 1024G, such as 64K or 1M");
  }
  *out = value << (10 * power);
  return absl::OkStatus();
}

absl::Status ReadEnvironment(const std::vector<std::string>& texts,
                             std::vector<std::pair<std::string, std::string>>* environment) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return WrongValue("--env", text, "give NAME=VALUE, such as --env OMP_NUM_THREADS=2");
    }
    const std::string name = text.substr(0, equals);
    if (name.starts_with("COHORT_AGENT") || name == "COHORT_LOCAL_RANK" || name == "COHORT_JOB_ID") {
      return absl::InvalidArgumentError("--env '" + text + "': dlaunch sets " + name +
                                        " itself, by which a rank finds its agent");
    }
    static constexpr std::string_view kOfTheEpoch[] = {
        "TORCHELASTIC_RUN_ID",       "COHORT_EPOCH", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "COHORT_RANK",  "COHORT_WORLD_SIZE"};
    if (IsRankVariable(name) ||
        std::find(std::begin(kOfTheEpoch), std::end(kOfTheEpoch), name) != std::end(kOfTheEpoch)) {
      return InvalidArgumentError(Remedy::kRankVariable, "--env '" + text + "': dlaunch sets " + name +
                                                             " itself, for each rank its own; leave it out");
    }
    environment->emplace_back(name, text.substr(equals + 1));
  }
  return absl::OkStatus();
}

absl::Status ReadPassedVariables(const std::string& text, std::vector<std::string>* names) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, comma - begin);
    const size_t star = name.find('*');
    if (name.empty() || name == "*" || name.find('=') != std::string::npos ||
        (star != std::string::npos && star + 1 != name.size())) {
      return WrongValue("--env-pass", text,
                        "give names separated by commas, such as HOME,XDG_* (the values are "
                        "this shell's; --env NAME=VALUE sets another)");
    }
    names->push_back(name);
    begin = comma + 1;
  }
  return absl::OkStatus();
}

absl::Status ReadMetrics(const std::string& text, std::string* address) {
  const size_t colon = text.rfind(':');
  const std::string host = colon == std::string::npos ? "127.0.0.1" : text.substr(0, colon);
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  const std::optional<int> number = ReadWholeNumber(port, 0, 65535);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  in6_addr unused{};
  const bool known = ::inet_pton(bracketed ? AF_INET6 : AF_INET,
                                 (bracketed ? host.substr(1, host.size() - 2) : host).c_str(), &unused) == 1;
  if (!known || !number) {
    return WrongValue("--metrics", text,
                      "give a TCP port, or an address of this machine and a port, such as 9400 or 0.0.0.0:9400");
  }
  *address = host + ":" + std::to_string(*number);
  return absl::OkStatus();
}

absl::Status ReadRankOrder(const std::string& text, Options* options) {
  constexpr std::string_view kFile = "file:";
  if (text == "natural") options->rank_order = RankOrder::kNatural;
  if (text == "given" || text == "natural") return absl::OkStatus();
  if (!text.starts_with(kFile) || text.size() == kFile.size()) {
    return WrongValue("--rank-order", text, "give given, natural or file: and the path of a list of hosts");
  }
  options->rank_order = RankOrder::kFile;
  options->rank_order_file = text.substr(kFile.size());
  return absl::OkStatus();
}

absl::Status ReadBind(const std::string& text, Bind* bind) {
  static const std::pair<const char*, Bind> kChoices[] = {
      {"core", Bind::kCore}, {"numa", Bind::kNuma}, {"none", Bind::kNone}};
  for (const auto& [name, choice] : kChoices) {
    if (text != name) continue;
    *bind = choice;
    return absl::OkStatus();
  }
  return WrongValue("--bind", text, "give core, numa or none");
}

std::string WithLongCount(std::string argument) {
  for (const std::string_view form : {"-np", "-n"}) {  // "-np" begins with "-n"
    if (!argument.starts_with(form)) continue;
    const std::string value = argument.substr(form.size());
    if (value.empty() || value[0] == '=') return "--np" + value;
    if (value.find_first_not_of("0123456789") == std::string::npos) return "--np=" + value;
  }
  return argument;
}

absl::Status ReadStopped(const std::string& text, Stopped* stopped) {
  if (text != "kill" && text != "wait") {
    return WrongValue("--stopped", text, "give kill or wait");
  }
  *stopped = text == "wait" ? Stopped::kWait : Stopped::kKill;
  return absl::OkStatus();
}

absl::Status ReadMpi(const std::string& text, Mpi* mpi) {
  static constexpr std::pair<const char*, Mpi> kHows[] = {
      {"auto", Mpi::kAuto}, {"pmi1", Mpi::kPmi1}, {"pmix", Mpi::kPmix}, {"none", Mpi::kNone}};
  for (const auto& [name, how] : kHows) {
    if (text != name) continue;
    *mpi = how;
    return absl::OkStatus();
  }
  return WrongValue("--mpi", text, "give auto, pmi1, pmix or none");
}

namespace {

// For an option that ranks see as a variable. A contradiction names both.
absl::Status AddVariable(const std::string& option, const std::string& variable, const std::string& text,
                         std::vector<std::pair<std::string, std::string>>* environment) {
  for (const auto& [name, value] : *environment) {
    if (name == variable && value != text) {
      return InvalidArgumentError(Remedy::kContradictingOptions, option + " " + text + " and --env " + name + "=" +
                                                                     value + " contradict each other; leave one out");
    }
  }
  environment->emplace_back(variable, text);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTorchBackend(const std::string& text, std::vector<std::pair<std::string, std::string>>* environment) {
  if (text != "cohort" && text != "torch") {
    return WrongValue("--torch-backend", text, "give cohort or torch");
  }
  return AddVariable("--torch-backend", "COHORT_TORCH_BACKEND", text, environment);
}

absl::Status ReadCheck(const std::string& text, std::vector<std::pair<std::string, std::string>>* environment) {
  if (text != "nan" && text != "results" && text != "nan,results" && text != "results,nan") {
    return WrongValue("--check", text, "give nan, results or nan,results");
  }
  return AddVariable("--check", "COHORT_CHECK", text == "results,nan" ? "nan,results" : text, environment);
}

}  // namespace cohort::launcher
