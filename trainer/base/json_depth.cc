#include "cohort/trainer/base/json_depth.h"

namespace cohort::trainer {

bool NestsTooDeep(const std::string& text) {
  constexpr int kDeepest = 100;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (quoted && character == '\\') {
      ++i;
    } else if (character == '"') {
      quoted = !quoted;
    } else if (!quoted && (character == '[' || character == '{')) {
      if (++depth > kDeepest) return true;
    } else if (!quoted && (character == ']' || character == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace cohort::trainer
