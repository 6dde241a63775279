// Calls of cohort.h that no program should make: null pointers, wrong sizes, freed and foreign handles, counts that no
// memory holds. None of them sends anything.
#pragma once

#include <random>
#include <string>

#include "cohort/comm/c/cohort.h"

namespace cohort::testing {

// Handles that the calls use: right ones, and some that were freed.
struct Handles {
  cohort_runtime runtime = nullptr;
  cohort_comm comm = nullptr;
  cohort_op op = nullptr;
  cohort_runtime freed_runtime = nullptr;
  cohort_comm freed_comm = nullptr;
  cohort_work freed_work = nullptr;
  cohort_window freed_window = nullptr;
  cohort_op freed_op = nullptr;
};

// The number of different wrong calls.
int WrongCalls();
// Makes wrong call `which` with random values. Returns "" when it was refused with a text, else what happened.
std::string MakeWrongCall(int which, const Handles& handles, std::mt19937_64& random);

}  // namespace cohort::testing
