# cohort_merge_sources(<target> <count>): compiles the target's sources <count> at a time, as one file that includes them.
#
# For code with libtorch. g++ keeps in a precompiled header which templates its inline functions need, and instantiates
# them anew in each file that uses it: 6 s a file, as long as most files' own code takes. Merged sources share their names
# without a namespace and in unnamed ones, so two of them must not use a name twice.
#
# Not CMake's UNITY_BUILD: it includes by absolute path, which hides the file from the compiler cache of another clone.
include_guard(GLOBAL)

function(cohort_merge_sources target count)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(binary_folder ${target} BINARY_DIR)
  set(kept ${sources})
  list(FILTER kept EXCLUDE REGEX "\\.cc$")
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  list(LENGTH sources left)
  math(EXPR files "(${left} + ${count} - 1) / ${count}")
  if(left LESS 2)
    return()
  endif()
  foreach(file RANGE 1 ${files})
    # As many for each as the rest allows.
    math(EXPR number "(${left} + ${files} - ${file}) / (${files} - ${file} + 1)")
    set(text "")
    foreach(one RANGE 1 ${number})
      list(POP_FRONT sources source)
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
endfunction()
