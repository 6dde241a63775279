// The two macros of the project that carry control flow. Neither logs or captures a name.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expression` is not OK.
#define COHORT_RETURN_IF_ERROR(expression)         \
  do {                                             \
    absl::Status cohort_status = (expression);     \
    if (!cohort_status.ok()) return cohort_status; \
  } while (false)

#define COHORT_STATUS_CONCAT_INNER(a, b) a##b
#define COHORT_STATUS_CONCAT(a, b) COHORT_STATUS_CONCAT_INNER(a, b)
#define COHORT_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return std::move(result).status();                \
  declaration = *std::move(result)

// COHORT_ASSIGN_OR_RETURN(auto x, F()) declares or assigns x, or returns F's error.
#define COHORT_ASSIGN_OR_RETURN(declaration, expression) \
  COHORT_ASSIGN_OR_RETURN_IMPL(COHORT_STATUS_CONCAT(cohort_result_, __LINE__), declaration, expression)
