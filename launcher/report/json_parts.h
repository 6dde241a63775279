// Parts that the JSON of several commands and report.json share. tools/schemas/ describes the documents.
#pragma once

#include <string>

#include "cohort/launcher/control/parts/program_of.h"
#include "nlohmann/json.hpp"

namespace cohort::launcher {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written

// The number of the documents' format, which each has as "format". It changes when a key is removed or means something
// else, and not when one is added.
inline constexpr int kJsonFormat = 1;

// The document with a newline behind it; bytes that are no UTF-8 are replaced.
std::string JsonText(const Json& document);
// The same in one line, for one document after another.
std::string JsonLine(const Json& document);

// [{"ranks": [[0, 3]], "command": ["/bin/train", "--epochs", "3"]}]: pairs of the first rank and the last.
Json ProgramsJson(const RankPrograms& programs);

}  // namespace cohort::launcher
