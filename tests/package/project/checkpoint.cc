// Includes all of the trainer, and calls what needs the libraries that the trainer was built on: libtorch and OpenSSL.
#include <cstdio>

#include "cohort/trainer.h"

int main() {
  try {
    cohort::trainer::ExportSafetensors("no/such/checkpoint", "model.safetensors");
  } catch (const cohort::trainer::DistributedError& error) {
    std::printf("refused as it should be: %s\n", error.what_without_backtrace());
    return 0;
  }
  return 1;
}
