#include "tools/program/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/runtime/base/build_info.h"
#include "cohort/runtime/manual/describe.h"
#include "cohort/runtime/manual/forms.h"

namespace cohort::tools {
namespace {

constexpr size_t kMostOfArguments = 40;  // characters

// Opened the wrong way round: who prints into a closed stream learns that it is.
void HoldStandardStreams() {
  int fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = dup(fd);
  if (fd >= 0) close(fd);  // the first one too many
}

// False, and told, when something is lost.
bool Flushed(const std::string& name) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  const int error = errno != 0 ? errno : EIO;
  std::fprintf(stderr, "%s: cannot write to the standard output: %s\n", name.c_str(), std::strerror(error));
  return false;
}

std::string NameOf(const CLI::App& app, int argc, const char* const* argv) {
  if (!app.get_name().empty()) return app.get_name();
  const std::string path = argc > 0 && argv[0] != nullptr ? argv[0] : "";
  return path.substr(path.find_last_of('/') + 1);
}

// CLI11's own words have these in the wrong order (2.1).
std::string Unexpected(const std::vector<std::string>& arguments) {
  std::string all;
  for (const std::string& argument : arguments) all += ' ' + argument;
  if (all.size() > kMostOfArguments) all = all.substr(0, kMostOfArguments) + "...";
  return "not expected:" + all;
}

// Why none of the commands was taken, which the program needs one of.
std::string NoCommand(CLI::App& app) {
  std::string commands;
  for (const CLI::App* const one : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += (commands.empty() ? "" : ", ") + one->get_name();
  }
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return "needs a command: " + commands;
  if (words[0].starts_with('-')) return Unexpected(words);
  return "unknown command \"" + words[0].substr(0, kMostOfArguments) + "\"; there are: " + commands;
}

// The program's manual page, reference or completion.
CommandLineEnd Described(const CLI::App& app, const std::string& name, const std::string& form) {
  const auto text = runtime::Form(runtime::Describe(app, name), form, std::string("cohort ") + COHORT_VERSION);
  if (text.has_value()) return {0, *text};
  return {2, name + ": " + runtime::kDescribeOption + " needs one of " + runtime::kFormNames + "\n"};
}

std::string Refusal(const CLI::App& app, const std::string& name, const std::string& why) {
  std::string command = name;
  for (const CLI::App* const one : app.get_subcommands()) command += ' ' + one->get_name();
  return name + ": " + Escaped(why) + "\nTry " + command + " --help.\n";
}

}  // namespace

std::string Escaped(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto next = static_cast<uint8_t>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;  // a control character in UTF-8
    if (byte < 0x20 || byte == 0x7f || c1) {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      shown += text[i];
    }
  }
  return shown;
}

int RunProgram(const std::string& name, const std::function<int()>& body) {
  HoldStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);
  int status = 1;
  try {
    status = body();
  } catch (const std::bad_alloc&) {  // of what the program's own size asks for
    std::fprintf(stderr, "%s: not enough memory; ask for less (fewer ranks, pieces or bytes)\n", name.c_str());
  }
  return Flushed(name) || status != 0 ? status : 1;
}

std::optional<CommandLineEnd> ReadCommandLine(CLI::App& app, int argc, const char* const* argv) {
  const std::string name = NameOf(app, argc, argv);
  app.set_version_flag("--version", name + " (cohort) " + runtime::DescribeBuild(), "Print the version and exit");
  if (argc == 3 && std::strcmp(argv[1], runtime::kDescribeOption) == 0) return Described(app, name, argv[2]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    return CommandLineEnd{2, Refusal(app, name, Unexpected(app.remaining(true)))};
  } catch (const CLI::RequiredError& error) {
    const bool command = app.get_require_subcommand_min() > 0 && app.get_subcommands().empty();
    return CommandLineEnd{2, Refusal(app, name, command ? NoCommand(app) : error.what())};
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    if (app.exit(error, out, err) == 0) return CommandLineEnd{0, out.str()};
    return CommandLineEnd{2, Refusal(app, name, error.what())};
  }
  return std::nullopt;
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, const char* const* argv) {
  const std::optional<CommandLineEnd> end = ReadCommandLine(app, argc, argv);
  if (!end.has_value()) return std::nullopt;
  std::fputs(end->text.c_str(), end->status == 0 ? stdout : stderr);
  return end->status;
}

void FlushOutput(const std::string& name) {
  if (!Flushed(name)) _exit(1);
}

}  // namespace cohort::tools
