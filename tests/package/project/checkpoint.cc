// Needs all that the trainer was built on: libtorch, and OpenSSL for the checksums.
#include "cohort/trainer/state/checkpoint/checkpoint.h"

#include <cstdio>

#include "cohort/trainer/base/error.h"

int main() {
  try {
    cohort::trainer::ExportSafetensors("no/such/checkpoint", "model.safetensors");
  } catch (const cohort::trainer::DistributedError& error) {
    std::printf("refused as it should be: %s\n", error.what_without_backtrace());
    return 0;
  }
  return 1;
}
