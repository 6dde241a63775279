#include "cohort/launcher/report/json_parts.h"

#include <vector>

namespace cohort::launcher {

std::string JsonText(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string JsonLine(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ProgramsJson(const RankPrograms& programs) {
  Json described = Json::array();
  for (const v1::RankProgram& program : programs) {
    Json ranks = Json::array();
    for (const v1::RankSpan& span : program.ranks()) ranks.push_back({span.first(), span.last()});
    described.push_back(
        {{"ranks", ranks}, {"command", std::vector<std::string>(program.command().begin(), program.command().end())}});
  }
  return described;
}

}  // namespace cohort::launcher
