# Finds what the folders build against and decides COHORT_HAVE_<X> for each COHORT_WITH_<X>=AUTO|ON|OFF.
#
#   UCX, CUDA, NCCL  headers only (cohort::ucx_headers, cohort::cuda_headers, cohort::nccl_headers): the libraries are
#                    opened at run time, so that one binary also runs where they are absent
#   NVCC             compiles the reduction kernels for CUDA devices; the library carries them
#   TORCH            the trainer
#   GRPC             the rendezvous and dlaunch
#   METRICS          dlaunch --metrics, by prometheus-cpp
#   LIBDW            native stacks of `dlaunch stacks`; headers only (cohort::libdw_headers), opened at run time
#   PMIX             Open MPI's programs under dlaunch; headers only (cohort::pmix_headers), opened at run time
#   PYTHON           the package dlaunch; headers only, of CPython 3.11 or newer; it runs with 3.9 or newer
#
# ON and missing is an error that names the remedy; AUTO and missing is a line of the summary. A folder chooses the
# source or the stub file by COHORT_HAVE_<X>; no shared code has an #ifdef.
include_guard(GLOBAL)

set(COHORT_SUMMARY "" CACHE INTERNAL "")

# cohort_resolve(<X> FOUND <bool> WHAT <text> REMEDY <text>): sets COHORT_HAVE_<X>.
function(cohort_resolve name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FOUND;WHAT;REMEDY" "")
  set(wanted ${COHORT_WITH_${name}})
  if(arg_FOUND)
    set(have ON)
    set(line "yes  ${arg_WHAT}")
  elseif(wanted STREQUAL "ON")
    message(FATAL_ERROR "COHORT_WITH_${name}=ON, but it was not found. ${arg_REMEDY}, or set COHORT_WITH_${name}=OFF.")
  elseif(wanted STREQUAL "AUTO")
    set(have OFF)
    set(line "no   not found. ${arg_REMEDY}.")
  else()
    set(have OFF)
    set(line "no   COHORT_WITH_${name}=OFF")
  endif()
  set(COHORT_HAVE_${name} ${have} PARENT_SCOPE)
  string(SUBSTRING "${name}        " 0 8 label)
  set_property(GLOBAL APPEND PROPERTY COHORT_SUMMARY "  ${label}${line}")
endfunction()

foreach(name IN ITEMS UCX CUDA NVCC NCCL TORCH GRPC METRICS LIBDW PMIX PYTHON)
  set(COHORT_WITH_${name} AUTO CACHE STRING "Build with ${name}: AUTO, ON or OFF")
  set_property(CACHE COHORT_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
  string(TOUPPER "${COHORT_WITH_${name}}" COHORT_WITH_${name})
  if(NOT COHORT_WITH_${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "COHORT_WITH_${name}=${COHORT_WITH_${name}}: choose AUTO, ON or OFF.")
  endif()
endforeach()

# cohort_find_headers(<name> <X> HEADER <header> [HINTS <folder>...]): the interface target cohort::<name>_headers.
function(cohort_find_headers name option)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "HEADER" "HINTS")
  set(COHORT_HEADERS_FOUND OFF PARENT_SCOPE)
  if(COHORT_WITH_${option} STREQUAL "OFF")
    return()
  endif()
  find_path(COHORT_${option}_INCLUDE_DIR ${arg_HEADER} HINTS ${arg_HINTS} PATH_SUFFIXES include)
  mark_as_advanced(COHORT_${option}_INCLUDE_DIR)
  if(COHORT_${option}_INCLUDE_DIR)
    add_library(cohort_${name}_headers INTERFACE)
    add_library(cohort::${name}_headers ALIAS cohort_${name}_headers)
    target_include_directories(cohort_${name}_headers SYSTEM INTERFACE ${COHORT_${option}_INCLUDE_DIR})
    set(COHORT_HEADERS_FOUND ON PARENT_SCOPE)
  endif()
endfunction()

# cohort_read_version(<variable> <file> <macro>...): joins the numbers of #define lines.
function(cohort_read_version variable file)
  set(version "")
  foreach(macro IN LISTS ARGN)
    file(STRINGS ${file} line REGEX "^#[ ]*define[ ]+${macro}[ ]+\"?[0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+\"?$|[0-9]+[ ]*$" number "${line}")
    string(REGEX REPLACE "[^0-9]" "" number "${number}")
    list(APPEND version "${number}")
  endforeach()
  string(REPLACE ";" "." version "${version}")
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

cohort_find_headers(ucx UCX HEADER ucp/api/ucp.h)
set(version "")
if(COHORT_HEADERS_FOUND)
  cohort_read_version(version ${COHORT_UCX_INCLUDE_DIR}/ucp/api/ucp_version.h UCP_API_MAJOR UCP_API_MINOR)
endif()
cohort_resolve(UCX FOUND ${COHORT_HEADERS_FOUND} WHAT "API ${version}, ${COHORT_UCX_INCLUDE_DIR}"
  REMEDY "Install libucx-dev or set CMAKE_PREFIX_PATH to UCX")

file(GLOB COHORT_CUDA_HINTS LIST_DIRECTORIES true /usr/local/cuda /usr/local/cuda-*)
cohort_find_headers(cuda CUDA HEADER cuda_runtime_api.h HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${COHORT_CUDA_HINTS})
set(version "")
if(COHORT_HEADERS_FOUND)
  cohort_read_version(version ${COHORT_CUDA_INCLUDE_DIR}/cuda_runtime_api.h CUDART_VERSION)
endif()
cohort_resolve(CUDA FOUND ${COHORT_HEADERS_FOUND} WHAT "${version}, ${COHORT_CUDA_INCLUDE_DIR}"
  REMEDY "Install the CUDA toolkit's headers or set CUDA_HOME")

# Whether nvcc works is tried once: it refuses host compilers that it does not know.
set(found OFF)
set(version "")
if(COHORT_HAVE_CUDA AND NOT COHORT_WITH_NVCC STREQUAL "OFF")
  find_program(COHORT_NVCC nvcc HINTS ${COHORT_CUDA_INCLUDE_DIR}/../bin $ENV{CUDA_HOME}/bin ${COHORT_CUDA_HINTS}
    PATH_SUFFIXES bin)
  if(COHORT_NVCC AND NOT DEFINED COHORT_NVCC_ARCHITECTURES)
    execute_process(COMMAND ${COHORT_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET RESULT_VARIABLE failed)
    execute_process(COMMAND ${COHORT_NVCC} -fatbin -x cu -o ${CMAKE_BINARY_DIR}/nvcc_works.fatbin /dev/null
      RESULT_VARIABLE broken OUTPUT_QUIET ERROR_QUIET)
    string(REGEX MATCHALL "sm_(80|90|100)[^0-9a-z]" architectures "${known}")
    string(REGEX MATCHALL "[0-9]+" architectures "${architectures}")
    if(failed EQUAL 0 AND broken EQUAL 0)
      set(COHORT_NVCC_ARCHITECTURES "${architectures}" CACHE STRING "CUDA architectures that kernels are built for")
    endif()
  endif()
  if(DEFINED COHORT_NVCC_ARCHITECTURES)
    set(found ON)
    string(REPLACE ";" " sm_" version "sm_${COHORT_NVCC_ARCHITECTURES}")
  endif()
endif()
cohort_resolve(NVCC FOUND ${found} WHAT "${version}, ${COHORT_NVCC}"
  REMEDY "Install a CUDA toolkit whose nvcc works with this compiler (and COHORT_WITH_CUDA)")

cohort_find_headers(nccl NCCL HEADER nccl.h
  HINTS $ENV{NCCL_HOME} ${COHORT_CUDA_INCLUDE_DIR} ${COHORT_CUDA_HINTS})
set(version "")
if(COHORT_HEADERS_FOUND AND NOT COHORT_HAVE_CUDA)
  set(COHORT_HEADERS_FOUND OFF) # nccl.h includes CUDA's headers
elseif(COHORT_HEADERS_FOUND)
  cohort_read_version(version ${COHORT_NCCL_INCLUDE_DIR}/nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
  target_link_libraries(cohort_nccl_headers INTERFACE cohort_cuda_headers)
endif()
cohort_resolve(NCCL FOUND ${COHORT_HEADERS_FOUND} WHAT "${version}, ${COHORT_NCCL_INCLUDE_DIR}"
  REMEDY "Install NCCL's header (libnccl-dev) beside the CUDA toolkit or set NCCL_HOME")

# Newer protobuf ships a configuration and needs it (for Abseil); Debian 12's has only CMake's module.
find_package(absl CONFIG REQUIRED)
find_package(Protobuf CONFIG QUIET)
if(NOT Protobuf_FOUND)
  find_package(Protobuf 3.21 REQUIRED)
endif()

# After Protobuf: upstream libtorch makes an empty target protobuf::libprotobuf where there is none.
if(NOT COHORT_WITH_TORCH STREQUAL "OFF")
  # Its configuration warns about optional parts that are not used here, and adds flags to every target of the caller.
  set(flags "${CMAKE_CXX_FLAGS}")
  # A libtorch with CUDA would build a program to ask the devices here for their architectures, which CMake 3.25 cannot:
  # it does not know CUDA 13's C++20. Nothing here is compiled for them against libtorch.
  if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST "9.0")
  endif()
  find_package(Torch QUIET)
  set(CMAKE_CXX_FLAGS "${flags}")
endif()
cohort_resolve(TORCH FOUND "${Torch_FOUND}" WHAT "${Torch_VERSION}"
  REMEDY "Install libtorch-dev or set CMAKE_PREFIX_PATH to libtorch")

if(NOT COHORT_WITH_GRPC STREQUAL "OFF")
  find_package(gRPC CONFIG QUIET)
endif()
cohort_resolve(GRPC FOUND "${gRPC_FOUND}" WHAT "${gRPC_VERSION}, protobuf ${Protobuf_VERSION}"
  REMEDY "Install libgrpc++-dev and protobuf-compiler-grpc")

if(NOT COHORT_WITH_METRICS STREQUAL "OFF")
  find_package(prometheus-cpp CONFIG QUIET)
endif()
cohort_resolve(METRICS FOUND "${prometheus-cpp_FOUND}" WHAT "prometheus-cpp, for dlaunch --metrics"
  REMEDY "Install prometheus-cpp-dev")

cohort_find_headers(libdw LIBDW HEADER elfutils/libdwfl.h)
cohort_resolve(LIBDW FOUND ${COHORT_HEADERS_FOUND} WHAT "libdw, for native stacks of dlaunch stacks"
  REMEDY "Install libdw-dev")

# Debian keeps them in a folder that its pkg-config file names.
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND AND NOT COHORT_WITH_PMIX STREQUAL "OFF")
  pkg_check_modules(COHORT_PMIX_PACKAGE QUIET pmix)
endif()
cohort_find_headers(pmix PMIX HEADER pmix_server.h HINTS ${COHORT_PMIX_PACKAGE_INCLUDE_DIRS})
cohort_resolve(PMIX FOUND ${COHORT_HEADERS_FOUND} WHAT "OpenPMIx, for Open MPI's programs under dlaunch"
  REMEDY "Install libpmix-dev")

if(NOT COHORT_WITH_PYTHON STREQUAL "OFF")
  find_package(Python3 3.11 QUIET COMPONENTS Interpreter Development.Module)
endif()
cohort_resolve(PYTHON FOUND "${Python3_Development.Module_FOUND}" WHAT "${Python3_VERSION}, ${Python3_EXECUTABLE}"
  REMEDY "Install python3-dev, 3.11 or newer")

# Used by single folders; a folder that needs one names it in DEPS and fails at configure time where it is missing.
find_package(hwy QUIET)     # hwy::hwy, which one test links; cohort::hwy_headers: comm/reduce/instruction_set.h says why
if(TARGET hwy::hwy)
  add_library(cohort_hwy_headers INTERFACE)
  add_library(cohort::hwy_headers ALIAS cohort_hwy_headers)
  target_include_directories(cohort_hwy_headers SYSTEM INTERFACE
    $<TARGET_PROPERTY:hwy::hwy,INTERFACE_INCLUDE_DIRECTORIES>)
endif()
find_package(CLI11 QUIET)   # CLI11::CLI11
find_package(nlohmann_json QUIET) # nlohmann_json::nlohmann_json
find_package(OpenSSL QUIET) # OpenSSL::Crypto, OpenSSL::SSL
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(hwloc QUIET IMPORTED_TARGET hwloc) # PkgConfig::hwloc
endif()
if(COHORT_BUILD_TESTS)
  find_package(GTest CONFIG QUIET) # GTest::gtest, GTest::gmock
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest was not found. "
      "Install libgtest-dev and libgmock-dev, or set COHORT_BUILD_TESTS=OFF.")
  endif()
endif()

function(cohort_print_summary)
  get_property(lines GLOBAL PROPERTY COHORT_SUMMARY)
  get_property(libraries GLOBAL PROPERTY COHORT_LIBRARIES)
  get_property(programs GLOBAL PROPERTY COHORT_PROGRAMS)
  get_property(tests GLOBAL PROPERTY COHORT_TESTS)
  list(LENGTH tests tests)
  list(JOIN lines "\n" lines)
  list(JOIN libraries " " libraries)
  list(JOIN programs " " programs)
  string(STRIP "${CMAKE_BUILD_TYPE} ${COHORT_SANITIZE}" kind)
  message(STATUS "cohort ${PROJECT_VERSION}, ${kind}, in ${CMAKE_BINARY_DIR}\n"
    "${lines}\n  libraries: ${libraries}\n  programs: ${programs}\n  tests: ${tests}")
endfunction()
