# How every target of this repository is compiled: the hidden interface target `cohort_options` (warnings, sanitizers,
# version), the compiler cache and the linker. Nothing here is exported to dependants.
include_guard(GLOBAL)

add_library(cohort_options INTERFACE)
target_compile_options(cohort_options INTERFACE -pthread -Wall -Wextra $<$<BOOL:${COHORT_WERROR}>:-Werror>)
target_compile_definitions(cohort_options INTERFACE COHORT_VERSION="${PROJECT_VERSION}")

# Everybody includes "cohort/comm/communicator.h": dependants of an install, and this tree, in which that is a link.
set(COHORT_INCLUDE_DIR ${CMAKE_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${COHORT_INCLUDE_DIR}/cohort)
foreach(folder IN ITEMS runtime comm launcher trainer python)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${COHORT_INCLUDE_DIR}/cohort/${folder} SYMBOLIC)
endforeach()
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/trainer/trainer.h ${COHORT_INCLUDE_DIR}/cohort/trainer.h SYMBOLIC)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/comm/c/cohort.h ${COHORT_INCLUDE_DIR}/cohort/cohort.h SYMBOLIC)

# Source locations in messages read "comm/x.cc", whatever the clone's path. The relative forms are what the compiler sees
# behind ccache, which makes paths relative to the build folder.
file(RELATIVE_PATH COHORT_SOURCE_FROM_BINARY ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR})
string(REGEX REPLACE "/$" "" COHORT_SOURCE_FROM_BINARY ${COHORT_SOURCE_FROM_BINARY})
foreach(prefix IN ITEMS ${PROJECT_SOURCE_DIR} ${COHORT_SOURCE_FROM_BINARY} ${COHORT_INCLUDE_DIR}/cohort include/cohort)
  target_compile_options(cohort_options INTERFACE "-fmacro-prefix-map=${prefix}/=")
endforeach()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ looks for memory to reuse from 128 MiB on. A twentieth to a sixth of its time goes into that, while the largest file
  # needs 2.5 GB instead of 1.9 without it.
  target_compile_options(cohort_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=2000000>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Only clang checks the lock annotations. It also warns of std::get_temporary_buffer inside libstdc++'s stable_sort.
  target_compile_options(cohort_options INTERFACE -Wthread-safety -Wno-deprecated-declarations)
endif()

foreach(sanitizer IN LISTS COHORT_SANITIZE)
  target_compile_options(cohort_options INTERFACE -fsanitize=${sanitizer})
  add_link_options(-fsanitize=${sanitizer})
  if(sanitizer STREQUAL "undefined") # its reports are failures, not remarks
    target_compile_options(cohort_options INTERFACE -fno-sanitize-recover=all)
  endif()
endforeach()
if(COHORT_FUZZ)
  target_compile_options(cohort_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if("address" IN_LIST COHORT_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # With ASan's code g++ 12 takes variables inside of std::regex and std::function for uninitialized.
  target_compile_options(cohort_options INTERFACE -Wno-maybe-uninitialized)
endif()
if("thread" IN_LIST COHORT_SANITIZE)
  # g++ warns that TSan ignores std::atomic_thread_fence; the code is annotated where that matters.
  target_compile_options(cohort_options INTERFACE -Wno-tsan)
endif()

# The base folder and the ignored working directory let several build folders and clones share cache hits. Its
# cache of inodes saves ccache from reading the precompiled headers, up to 680 MB, again for each file.
find_program(COHORT_CCACHE ccache)
if(COHORT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_INODECACHE=1
    CCACHE_SLOPPINESS=locale,pch_defines,time_macros,include_file_mtime,include_file_ctime ${COHORT_CCACHE})
endif()

find_program(COHORT_MOLD mold)
if(COHORT_MOLD AND NOT CMAKE_CROSSCOMPILING) # a cross compiler looks for it by another name
  # Each segment on pages of its own: else mold 1.10 lets the part that becomes read-only begin on a page that is not
  # mapped, where .tbss is its first section and the code ends within 16 bytes of a page's end. Such a program does not
  # start: "cannot apply additional memory protection after relocation".
  add_link_options(-fuse-ld=mold LINKER:-z,separate-loadable-segments)
endif()

find_package(Threads REQUIRED)
