// How far a rank's use of MPI has come.
#pragma once

#include <cstdint>

namespace cohort::launcher {

// In ascending order: for a rank that is served in several ways, the greatest holds.
enum class MpiUse : uint8_t {
  kNever,      // it has not called MPI_Init
  kFinalized,  // it has called MPI_Finalize
  kLeft,       // it has ended without MPI_Finalize
  kInside,     // it is between MPI_Init and MPI_Finalize
};

}  // namespace cohort::launcher
