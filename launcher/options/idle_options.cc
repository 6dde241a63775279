#include "cohort/launcher/options/idle_options.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

#include "CLI/App.hpp"

namespace cohort::launcher {
namespace {

struct IdleOption {
  const char* name;
  bool takes_value;
  const char* why;
};

constexpr const char* kRanksMeet = "ranks find each other by themselves";
constexpr const char* kStartsAndWatches = "dlaunch starts and watches programs in its own way";

constexpr IdleOption kIdleOptions[] = {{"--standalone", false, kRanksMeet},
                                       {"--rdzv-backend", true, kRanksMeet},
                                       {"--rdzv-endpoint", true, kRanksMeet},
                                       {"--rdzv-id", true, kRanksMeet},
                                       {"--rdzv-conf", true, kRanksMeet},
                                       {"--master-addr", true, kRanksMeet},
                                       {"--master-port", true, kRanksMeet},
                                       {"--local-addr", true, kRanksMeet},
                                       {"--monitor-interval", true, kStartsAndWatches},
                                       {"--start-method", true, kStartsAndWatches},
                                       {"--role", true, kStartsAndWatches}};

}  // namespace

void AddIdleOptions(CLI::App* app) {
  for (const IdleOption& option : kIdleOptions) {
    std::string names = option.name;
    if (names.find('-', 2) != std::string::npos) {
      std::string underscored = names;
      std::replace(underscored.begin() + 2, underscored.end(), '-', '_');
      names += "," + underscored;
    }
    if (option.takes_value) {
      app->add_option(names)->expected(1)->take_last()->group("");
    } else {
      app->add_flag(names)->group("");
    }
  }
}

std::vector<std::string> GivenIdleOptions(const CLI::App& app) {
  std::vector<std::string> given;
  for (const IdleOption& option : kIdleOptions) {
    if (app.get_option(option.name)->count() > 0) given.emplace_back(option.name);
  }
  return given;
}

std::string DescribeIdleOptions(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  text += names.size() == 1 ? " has no effect here" : " have no effect here";
  std::string_view before = ":";
  for (const std::string_view why : {kRanksMeet, kStartsAndWatches}) {
    const auto is_why = [&](const IdleOption& option) {
      return option.why == why && std::find(names.begin(), names.end(), option.name) != names.end();
    };
    if (std::none_of(std::begin(kIdleOptions), std::end(kIdleOptions), is_why)) continue;
    text.append(before).append(" ").append(why);
    before = ",";
  }
  return text;
}

}  // namespace cohort::launcher
