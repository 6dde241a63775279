# The functions a folder's CMakeLists.txt is written with. A list of sources and dependencies is all a folder states;
# warnings, include paths, installation and sanitizers follow.
#
# A library `cohort_comm` with alias `cohort::comm`, included as "cohort/comm/communicator.h" here and where it is
# installed.
# HDRS are the public headers, installed if the folder is proto, runtime, comm or trainer; private ones go to SRCS. A
# library of headers alone is an interface. COHORT_CHECK_HEADERS=ON compiles the headers that are not installed without
# sources before them; tests/package does so with the installed ones.
# PRIVATE_DEPS are used by the .cc files only.
# PCH_FROM names the set of precompiled headers, common_headers if it is left out (CohortHeaders.cmake). Several sources
# are compiled as one (CohortMerge.cmake), or alone with UNMERGED.
#
#   cohort_library(NAME comm
#     HDRS communicator.h work.h
#     SRCS communicator.cc internal/cache.h internal/cache.cc
#     DEPS cohort::runtime absl::statusor
#     PRIVATE_DEPS OpenSSL::Crypto cohort::ucx_headers # *_headers: needed to compile, never by dependants
#     [EXCLUDE_FROM_INSTALL] [PCH_FROM torch_headers] [UNMERGED])
#
# Messages generated from .proto files beside the calling CMakeLists.txt; included as "cohort/v1/agent.pb.h". With GRPC
# the services too (`agent.grpc.pb.h`). PROTOS are relative to the calling folder and so are their imports.
#
#   cohort_proto_library(NAME proto PROTOS cohort/v1/agent.proto)
#   cohort_proto_library(NAME proto_lite LITE PROTOS cohort/v1/agent.proto) # not registered by name in the process
#   cohort_proto_library(NAME proto_grpc GRPC PROTOS cohort/v1/rendezvous.proto DEPS cohort::proto)
#
# A program in <build>/bin, installed unless it says otherwise (CohortProgram.cmake). PREFER_ARCHIVES links Abseil, gRPC
# and Protobuf statically where they have archives, so that it starts faster. Not for programs with libtorch, which has a
# Protobuf of its own.
#
#   cohort_program(NAME dlaunch SRCS main.cc DEPS cohort::launcher [EXCLUDE_FROM_INSTALL] [PREFER_ARCHIVES])
#
# A GoogleTest binary, one ctest entry named after it (CohortTest.cmake has the details). One entry per binary unless
# DISCOVER asks for one per test; a binary all of whose tests skip is shown as skipped. Several sources are compiled as one
# (CohortMerge.cmake): small tests of a folder share a program, unless they change their process for good.
#
#   cohort_test(NAME comm_selector_test
#     SRCS selector_test.cc
#     DEPS cohort::comm GTest::gmock
#     [LABELS multiprocess netns slurm gpu nightly] [TIMEOUT 120] [ENV A=1 B=2] [RUN_SERIAL] [DISCOVER] [NIGHTLY])
#
# NIGHTLY adds an entry `<name>_nightly` that runs the binary with --nightly (tests/support/nightly.h).
#
# A GoogleTest binary with an entry for each X_test.cc of its sources, `<prefix>_X_test`, which runs the suites of that
# file. It costs far less time to compile than a binary a file. Two files that have tests of one suite are refused.
#
#   cohort_test_group(NAME comm_group_tests PREFIX comm
#     SRCS death_test.cc shrink_test.cc survivors.h
#     DEPS cohort::process_cluster
#     [LABELS ...] [TIMEOUT 120] [ENV ...] [NIGHTLY shrink_test.cc]) # of every entry; NIGHTLY: files with such an entry
#   cohort_test_timeout(300 comm_death_test) # where one differs; set_tests_properties sets its other properties
#
# Any other command as a test; exit status 77 means skipped, with a line "skipped: <what>: <why>" in its output. The
# programs it names are built before.
#
#   cohort_command_test(NAME job_kill_test
#     COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/kill_test.py $<TARGET_FILE:dlaunch>
#     [LABELS ...] [TIMEOUT 120] [ENV ...] [RUN_SERIAL])
#
# A helper program of tests, in <build>/tests/bin, not a test itself: cohort_test_program(NAME ... SRCS ... DEPS ...)
#
# A fuzz target, source with LLVMFuzzerTestOneInput: libFuzzer in preset `fuzz`, else a test that replays the corpus.
#
#   cohort_fuzzer(NAME launcher_token_fuzz SRCS token_fuzz.cc DEPS cohort::launcher [CORPUS corpus/token])
include_guard(GLOBAL)

option(COHORT_CHECK_HEADERS "Compile the headers that are not installed without sources before them" OFF)

# A dependency that only compiles is hidden from the export set. Programs that link the library link all others.
function(cohort_link_private target)
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "_headers$")
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${dep}>)
    else()
      target_link_libraries(${target} PRIVATE ${dep})
    endif()
  endforeach()
endfunction()

# cohort_check_deps(<name> <target>...): a missing dependency is named here rather than at link time as "-lfoo::foo".
function(cohort_check_deps name)
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "::" AND NOT dep MATCHES "[$]<" AND NOT TARGET ${dep})
      message(FATAL_ERROR "${name} needs ${dep}, which was not found. `tools/dev setup` installs what is missing.")
    endif()
  endforeach()
endfunction()

# The folder that includes are relative to, and how this folder's headers are reached from it.
function(cohort_include_base base folder)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(path MATCHES "^(runtime|comm|launcher|trainer)(/|$)")
    set(${base} ${COHORT_INCLUDE_DIR} PARENT_SCOPE)
    set(${folder} ${COHORT_INCLUDE_DIR}/cohort/${path} PARENT_SCOPE)
  else()
    set(${base} ${PROJECT_SOURCE_DIR} PARENT_SCOPE)
    set(${folder} ${CMAKE_CURRENT_SOURCE_DIR} PARENT_SCOPE)
  endif()
endfunction()

function(cohort_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "EXCLUDE_FROM_INSTALL;UNMERGED" "NAME;PCH_FROM" "HDRS;SRCS;DEPS;PRIVATE_DEPS")
  cohort_check_arguments("cohort_library")
  set(target cohort_${arg_NAME})
  cohort_check_deps(${target} ${arg_DEPS} ${arg_PRIVATE_DEPS})
  set(compiled ${arg_SRCS})
  list(FILTER compiled EXCLUDE REGEX "\\.h$")
  if(compiled)
    add_library(${target} STATIC ${arg_SRCS})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:cohort_options>)
    cohort_link_private(${target} ${arg_PRIVATE_DEPS})
    if(NOT arg_PCH_FROM)
      set(arg_PCH_FROM common_headers)
    endif()
    cohort_reuse_headers(${target} ${arg_PCH_FROM})
    if(NOT arg_UNMERGED)
      cohort_merge_sources(${target} 10)
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(cohort::${arg_NAME} ALIAS ${target})
  target_compile_features(${target} ${scope} cxx_std_20)
  cohort_include_base(base folder)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${base}>)
  target_link_libraries(${target} ${scope} ${arg_DEPS})
  if(arg_HDRS)
    list(TRANSFORM arg_HDRS PREPEND ${folder}/)
    list(TRANSFORM arg_HDRS REPLACE "/cohort/trainer/trainer[.]h$" "/cohort/trainer.h") # all of the trainer
    list(TRANSFORM arg_HDRS REPLACE "/cohort/comm/c/cohort[.]h$" "/cohort/cohort.h") # the interface for C
    target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${base} FILES ${arg_HDRS})
  endif()
  cohort_is_installed(installed)
  if(installed)
    cohort_install_library(${arg_NAME} "${arg_DEPS};${arg_PRIVATE_DEPS}" "${arg_HDRS}")
  elseif(COHORT_CHECK_HEADERS AND arg_HDRS)
    cohort_check_headers(${target} ${base} ${arg_HDRS})
  endif()
endfunction()

# cohort_check_headers(<target> <base> <header>...): compiles the library's headers, without precompiled ones, in one file
# in their order and in another backwards. A header that lacks an #include fails in one of them, unless a header before it
# and one after it have that #include. A file for each header would find those too, and takes twice as long.
function(cohort_check_headers target base)
  set(forwards "")
  set(backwards "")
  foreach(header IN LISTS ARGN)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${base})
    string(APPEND forwards "#include \"${header}\"\n")
    string(PREPEND backwards "#include \"${header}\"\n")
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/headers/${target})
  file(CONFIGURE OUTPUT ${folder}_forwards.cc CONTENT "${forwards}" @ONLY)
  set(checks ${folder}_forwards.cc)
  if(NOT forwards STREQUAL backwards)
    file(CONFIGURE OUTPUT ${folder}_backwards.cc CONTENT "${backwards}" @ONLY)
    list(APPEND checks ${folder}_backwards.cc)
  endif()
  add_library(${target}_headers_alone OBJECT ${checks})
  target_link_libraries(${target}_headers_alone PRIVATE ${target})
  target_compile_options(${target}_headers_alone PRIVATE -O0 -g0) # nobody links it
endfunction()

function(cohort_proto_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "GRPC;LITE;EXCLUDE_FROM_INSTALL" "NAME" "PROTOS;DEPS")
  cohort_check_arguments("cohort_proto_library")
  set(target cohort_${arg_NAME})
  if(arg_LITE)
    set(generated_dir ${CMAKE_CURRENT_BINARY_DIR}/lite)
    set(cpp_out lite:${generated_dir})
  else()
    set(generated_dir ${CMAKE_CURRENT_BINARY_DIR}/generated)
    set(cpp_out ${generated_dir})
  endif()
  file(MAKE_DIRECTORY ${generated_dir})
  set(generated "")
  foreach(proto IN LISTS arg_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(outputs ${generated_dir}/${stem}.pb.h ${generated_dir}/${stem}.pb.cc)
    set(command protobuf::protoc --cpp_out=${cpp_out} -I${CMAKE_CURRENT_SOURCE_DIR})
    if(arg_GRPC)
      list(APPEND outputs ${generated_dir}/${stem}.grpc.pb.h ${generated_dir}/${stem}.grpc.pb.cc)
      list(APPEND command --grpc_out=${generated_dir}
        --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    # Imported .proto files are dependencies too, which protoc lists itself.
    string(REPLACE "/" "_" depfile ${CMAKE_CURRENT_BINARY_DIR}/${stem}.d)
    set(depfile ${generated_dir}/${stem}.d)
    add_custom_command(OUTPUT ${outputs}
      COMMAND ${command} --dependency_out=${depfile} ${proto}
      WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
      DEPENDS ${proto} DEPFILE ${depfile} COMMENT "Generating ${stem}.pb" VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  cohort_check_deps(${target} ${arg_DEPS})
  add_library(${target} STATIC ${generated})
  add_library(cohort::${arg_NAME} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  # SYSTEM: the warnings of generated code are not ours to fix.
  target_include_directories(${target} SYSTEM PUBLIC $<BUILD_INTERFACE:${generated_dir}>)
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf ${arg_DEPS})
  set(deps protobuf::libprotobuf ${arg_DEPS})
  if(arg_GRPC)
    target_link_libraries(${target} PUBLIC gRPC::grpc++)
    list(APPEND deps gRPC::grpc++)
  endif()
  cohort_is_installed(installed)
  if(installed)
    cohort_install_library(${arg_NAME} "${deps}" "")
  endif()
endfunction()

# Users link the libraries of these folders; those of the others are parts of programs.
macro(cohort_is_installed variable)
  file(RELATIVE_PATH ${variable} ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(${variable} MATCHES "^(proto|runtime|comm|trainer)(/|$)" AND NOT arg_EXCLUDE_FROM_INSTALL)
    set(${variable} ON)
  else()
    set(${variable} OFF)
  endif()
endmacro()

# A misspelt keyword is an error here rather than a source file that nobody compiled.
macro(cohort_check_arguments function)
  if(NOT arg_NAME)
    message(FATAL_ERROR "${function} needs NAME")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${function}(${arg_NAME}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
endmacro()
