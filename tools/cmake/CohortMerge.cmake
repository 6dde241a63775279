# cohort_merge_sources(<target> <count>): compiles the target's sources <count> at a time, as one file that includes them.
#
# Most of a file's time goes into headers. With libtorch it is worse: g++ keeps in a precompiled header which templates its
# inline functions need, and instantiates them again in each file that uses it, 6 s a file.
#
# Merged sources see each other's unnamed namespaces. A name there must not be one that another source uses: a second
# definition does not compile, but a better overload or a constant that hides a header's is taken without a word.
#
# Sources that a build generates stay on their own. COHORT_MERGE_SOURCES=OFF compiles all of them alone, which is quicker
# for one who edits one file again and again.
#
# Not CMake's UNITY_BUILD: it includes by absolute path, which hides the file from the compiler cache of another clone.
include_guard(GLOBAL)

option(COHORT_MERGE_SOURCES "Compile several source files as one" ON)

function(cohort_merge_sources target count)
  if(NOT COHORT_MERGE_SOURCES)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(binary_folder ${target} BINARY_DIR)
  set(kept ${sources})
  set(merged_sources "")
  foreach(source IN LISTS sources)
    get_source_file_property(generated ${source} TARGET_DIRECTORY ${target} GENERATED)
    if(source MATCHES "\\.cc$" AND NOT generated)
      list(APPEND merged_sources ${source})
      list(REMOVE_ITEM kept ${source})
    endif()
  endforeach()
  list(LENGTH merged_sources left)
  if(left LESS 2)
    return()
  endif()
  math(EXPR files "(${left} + ${count} - 1) / ${count}")
  foreach(file RANGE 1 ${files})
    # As many for each as the rest allows.
    math(EXPR number "(${left} + ${files} - ${file}) / (${files} - ${file} + 1)")
    set(text "")
    foreach(one RANGE 1 ${number})
      list(POP_FRONT merged_sources source)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(REGEX REPLACE "^(runtime|comm|launcher|trainer)/" "cohort/\\1/" source ${source})
      string(APPEND text "#include \"${source}\"\n")
    endforeach()
    math(EXPR left "${left} - ${number}")
    set(merged ${binary_folder}/merged/${target}_${file}.cc)
    file(CONFIGURE OUTPUT ${merged} CONTENT "${text}" @ONLY)
    list(APPEND kept ${merged})
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${kept})
  # g++ takes a class outside of the main file for one that several files share.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
