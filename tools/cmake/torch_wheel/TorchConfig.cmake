# libtorch as a PyPI wheel brings it, its CPU part alone: the wheel's own configuration asks for a CUDA toolkit.
#
#   cmake ... -DTorch_DIR=<this folder> -DCOHORT_TORCH_WHEEL=<the Python package's folder: site-packages/torch>
set(Torch_FOUND FALSE)
if(NOT EXISTS "${COHORT_TORCH_WHEEL}/lib/libtorch_cpu.so")
  string(CONCAT Torch_NOT_FOUND_MESSAGE
    "COHORT_TORCH_WHEEL is \"${COHORT_TORCH_WHEEL}\", where there is no lib/libtorch_cpu.so; give the folder of the "
    "Python package torch, site-packages/torch")
  return()
endif()
file(STRINGS "${COHORT_TORCH_WHEEL}/version.py" Torch_VERSION REGEX "^__version__")
string(REGEX REPLACE "^[^0-9]*([0-9.]+).*" "\\1" Torch_VERSION "${Torch_VERSION}")
if(NOT TARGET torch)
  add_library(torch SHARED IMPORTED)
  set_target_properties(torch PROPERTIES
    IMPORTED_LOCATION "${COHORT_TORCH_WHEEL}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${COHORT_TORCH_WHEEL}/include;${COHORT_TORCH_WHEEL}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${COHORT_TORCH_WHEEL}/lib/libc10.so")
endif()
set(TORCH_LIBRARIES torch)
set(Torch_FOUND TRUE)
