#include "cohort/launcher/base/say.h"

#include <cstdio>

#include "cohort/launcher/base/printable.h"

namespace cohort::launcher {

void Say(const std::string& text) { std::fprintf(stderr, "dlaunch: %s\n", PrintableLines(text).c_str()); }

int Refuse(const std::string& text, int exit_code) {
  Say(text);
  return exit_code;
}

int Refuse(const absl::Status& status, int exit_code) { return Refuse(std::string(status.message()), exit_code); }

std::string Plural(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace cohort::launcher
