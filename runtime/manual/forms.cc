#include "cohort/runtime/manual/forms.h"

#include "cohort/runtime/manual/completion.h"
#include "cohort/runtime/manual/manual_page.h"
#include "cohort/runtime/manual/reference_page.h"

namespace cohort::runtime {

std::optional<std::string> Form(const ManualCommand& program, std::string_view form, const std::string& build) {
  if (form == "man") return ManualPage(program, build);
  if (form == "markdown") return ReferencePage(program);
  if (form == "bash") return BashCompletion(program);
  if (form == "zsh") return ZshCompletion(program);
  if (form == "fish") return FishCompletion(program);
  return std::nullopt;
}

}  // namespace cohort::runtime
