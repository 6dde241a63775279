#include "cohort/launcher/base/say.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

void Say(const std::string& text) { std::fprintf(stderr, "dlaunch: %s\n", PrintableLines(text).c_str()); }

int Refuse(const std::string& text, int exit_code) {
  Say(text);
  return exit_code;
}

int Refuse(const absl::Status& status, int exit_code) { return Refuse(TextOf(status), exit_code); }

int Answer(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return 0;
  return Refuse("can't write the standard output: " + std::string(std::strerror(errno)), kExitLauncher);
}

std::string Plural(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace cohort::launcher
