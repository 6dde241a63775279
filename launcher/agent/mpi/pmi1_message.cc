#include "cohort/launcher/agent/mpi/pmi1_message.h"

#include <charconv>

namespace cohort::launcher {

Pmi1Message Pmi1Message::Parse(std::string_view line) {
  Pmi1Message message;
  while (!line.empty()) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) break;
    line.remove_prefix(begin);
    const size_t equals = line.find_first_of("= ");
    if (equals == std::string_view::npos) break;
    if (line[equals] == ' ') {
      line.remove_prefix(equals);
      continue;
    }
    const std::string_view name = line.substr(0, equals);
    line.remove_prefix(equals + 1);
    const bool whole = name == "value" || name == "message";
    const std::string_view value = line.substr(0, whole ? line.size() : line.find(' '));
    line.remove_prefix(value.size());
    if ((name == "cmd" || name == "mcmd") && message.command_.empty()) {
      message.command_ = value;
    } else {
      message.words_.emplace_back(name, value);
    }
  }
  return message;
}

std::string_view Pmi1Message::Get(std::string_view name) const {
  for (const auto& [word, value] : words_) {
    if (word == name) return value;
  }
  return {};
}

int Pmi1Message::GetNumber(std::string_view name, int otherwise) const {
  const std::string_view text = Get(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : otherwise;
}

}  // namespace cohort::launcher
