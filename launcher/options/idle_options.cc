#include "cohort/launcher/options/idle_options.h"

#include <algorithm>
#include <cstddef>

#include "CLI/App.hpp"

namespace cohort::launcher {
namespace {

struct IdleOption {
  const char* name;
  bool takes_value;
};

constexpr IdleOption kIdleOptions[] = {{"--standalone", false}, {"--rdzv-backend", true}, {"--rdzv-endpoint", true},
                                       {"--rdzv-id", true},     {"--rdzv-conf", true},    {"--master-addr", true},
                                       {"--master-port", true}};

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
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  if (names.empty()) return "";
  return text + (names.size() == 1 ? " has" : " have") + " no effect here: ranks find each other by themselves";
}

}  // namespace cohort::launcher
