// The options of a port. CLI11 reads them, and only argument_parser.cc includes it: its headers cost g++ 6 s in each
// program.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace cohort::examples {

class ArgumentParser {
 public:
  explicit ArgumentParser(const std::string& description);
  ~ArgumentParser();

  // An option `name` ("--lr") that sets `value`, which outlives Parse and keeps what it has where the option is not
  // given.
  void Add(const std::string& name, double& value);
  void Add(const std::string& name, int& value, const std::string& help);
  void Add(const std::string& name, uint64_t& value);
  void Add(const std::string& name, std::string& value, const std::string& help = "");
  // One that has to be given.
  void AddRequired(const std::string& name, std::string& value);
  // A count of at least one.
  void AddCount(const std::string& name, int& value, const std::string& help = "");
  void AddCount(const std::string& name, int64_t& value, const std::string& help = "");

  // The status with which the program ends after --help or an error, which are printed; nothing where it goes on.
  std::optional<int> Parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace cohort::examples
