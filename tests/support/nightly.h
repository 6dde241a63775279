// How often a test tries: `tools/dev test` runs the ordinary count, `tools/dev test --nightly` also an entry of the
// same binary, `<name>_nightly`, with the large one. A test that has a large count is declared with NIGHTLY in its
// CMakeLists.txt.
#pragma once

#include <cstdint>

namespace cohort::testing {

// True when the binary was started with --nightly. Constant once main() has begun.
bool Nightly();

inline int64_t Trials(int64_t ordinary, int64_t nightly) { return Nightly() ? nightly : ordinary; }

}  // namespace cohort::testing
