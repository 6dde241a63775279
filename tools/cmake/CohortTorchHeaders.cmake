# cohort_torch_headers: libtorch's headers, precompiled once for all libraries and programs (PCH_FROM torch_headers). Nothing
# of it is linked. It is a target of the top folder because ninja begins there: the others wait 30 s for these headers, and
# meanwhile the other core has the rest to compile.
include_guard(GLOBAL)

if(COHORT_HAVE_TORCH)
  set(source ${PROJECT_BINARY_DIR}/torch_headers.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(cohort_torch_headers OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(cohort_torch_headers PRIVATE cohort_options ${TORCH_LIBRARIES})
  target_compile_features(cohort_torch_headers PRIVATE cxx_std_20)
  target_compile_options(cohort_torch_headers PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>) # or ccache gives up
  target_precompile_headers(cohort_torch_headers PRIVATE <torch/torch.h>)
endif()
