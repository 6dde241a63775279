# What `cmake --install` leaves behind beside the libraries: find_package(cohort) and cohort.pc, both with the
# dependencies the installed (static) libraries need, taken from what the folders declared.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

get_property(COHORT_INSTALLED GLOBAL PROPERTY COHORT_LIBRARIES)
if(NOT COHORT_INSTALLED)
  return()
endif()
