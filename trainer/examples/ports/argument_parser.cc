#include "cohort/trainer/examples/ports/argument_parser.h"

#include <cstdint>
#include <limits>

#include "CLI/CLI.hpp"

namespace cohort::examples {

ArgumentParser::ArgumentParser(const std::string& description) : app_(std::make_unique<CLI::App>(description)) {}
ArgumentParser::~ArgumentParser() = default;

void ArgumentParser::Add(const std::string& name, double& value) { app_->add_option(name, value); }
void ArgumentParser::Add(const std::string& name, uint64_t& value) { app_->add_option(name, value); }
void ArgumentParser::Add(const std::string& name, int& value, const std::string& help) {
  app_->add_option(name, value, help);
}
void ArgumentParser::Add(const std::string& name, std::string& value, const std::string& help) {
  app_->add_option(name, value, help);
}
void ArgumentParser::AddRequired(const std::string& name, std::string& value) {
  app_->add_option(name, value)->required();
}
void ArgumentParser::AddCount(const std::string& name, int& value, const std::string& help) {
  app_->add_option(name, value, help)->check(CLI::Range(1, std::numeric_limits<int>::max()));
}
void ArgumentParser::AddCount(const std::string& name, int64_t& value, const std::string& help) {
  app_->add_option(name, value, help)->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
}

std::optional<int> ArgumentParser::Parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error);
  }
  return std::nullopt;
}

}  // namespace cohort::examples
