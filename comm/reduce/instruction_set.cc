#include "cohort/comm/reduce/instruction_set.h"

#include <cstdint>

namespace cohort::comm {

#if HWY_ARCH_X86_64
// The features that Highway lets the compiler use for each (hwy/ops/set_macros-inl.h).
int64_t SupportedInstructionSets() {
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("aes") ||
      !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") ||
      !__builtin_cpu_supports("lzcnt") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return HWY_STATIC_TARGET;
  }
  int64_t found = HWY_STATIC_TARGET | HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd")) {
    return found;
  }
  found |= HWY_AVX3;
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("vpclmulqdq") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("vaes") &&
      __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
      __builtin_cpu_supports("gfni")) {
    found |= HWY_AVX3_DL;
  }
  return found;
}
#else
int64_t SupportedInstructionSets() { return HWY_STATIC_TARGET; }
#endif

hwy::ChosenTarget& ChosenInstructionSet() {
  static hwy::ChosenTarget chosen;
  static const bool updated = [] {
    chosen.Update(SupportedInstructionSets());
    return true;
  }();
  static_cast<void>(updated);
  return chosen;
}

}  // namespace cohort::comm
