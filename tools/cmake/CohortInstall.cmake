# `cmake --install` leaves three libraries, their headers, find_package(cohort), cohort.pc, cohort-c.pc and the programs.
#
# A folder is a static library in the build, and tests and programs link those. Users link one of three libraries that
# are made from the folders' objects: libcohort_comm (runtime, comm and the mesh), libcohort_trainer (what needs libtorch)
# and libcohort_c (the interface for C, comm/c). Its soname has the major version of that interface: C programs need no
# new link when the C++ interface changes.
# Each file belongs to a component, which is a package too (CohortPackage.cmake): runtime, development, dlaunch (also what
# names none), trainer.
#
# The runtime is part of libcohort_comm because its singletons must exist once and it is of no use alone. They are
# shared libraries whose exported.map.in hides everything but Cohort's own names; COHORT_SHARED=OFF makes archives.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

option(COHORT_SHARED "Install shared libraries; OFF: static ones, which need what they were built on" ON)
option(COHORT_STRIP "Strip programs and shared libraries when they are installed" ON)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dlaunch)
if(COHORT_STRIP)
  install(CODE "set(CMAKE_INSTALL_DO_STRIP ON)" ALL_COMPONENTS) # comes before all other rules, which read it
endif()

# How a dependency's target is found again: <regular expression>|<find_dependency arguments>|<pkg-config module>.
set(COHORT_FOREIGN
  "^absl::(.+)$|absl CONFIG|absl_\\1"
  "^protobuf::libprotobuf$|Protobuf|protobuf"
  "^Threads::Threads$|Threads|"
  "^OpenSSL::.+$|OpenSSL|openssl")
# Installed headers include these, besides libtorch in the trainer's. tests/tidy/layering.py keeps the headers to them.
set(COHORT_IN_HEADERS "^absl::(status|statusor)$")

# cohort_component_of(<variable> <dep>...): the installed library that a folder with these dependencies is part of:
# "trainer" where libtorch is needed, else "comm".
function(cohort_component_of variable)
  set(component comm)
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "^cohort::(.+)$")
      get_property(inherited GLOBAL PROPERTY COHORT_COMPONENT_${CMAKE_MATCH_1})
    endif()
    if(dep MATCHES "^torch" OR (dep MATCHES "^cohort::" AND inherited STREQUAL "trainer"))
      set(component trainer)
    endif()
  endforeach()
  set(${variable} ${component} PARENT_SCOPE)
endfunction()

# cohort_parts_of(<library> <binaries> <rest>): the components that an installed library's file, and its headers and
# targets, belong to.
function(cohort_parts_of library binaries rest)
  if(library STREQUAL "trainer")
    set(${binaries} trainer PARENT_SCOPE)
    set(${rest} trainer PARENT_SCOPE)
  else()
    set(${binaries} runtime PARENT_SCOPE)
    set(${rest} development PARENT_SCOPE)
  endif()
endfunction()

# cohort_install_library(<name> <deps> <headers>), called by cohort_library: the folder is part of what is installed.
function(cohort_install_library name deps headers)
  if(name STREQUAL "comm_c")
    set(component c)
  else()
    cohort_component_of(component ${deps})
  endif()
  get_target_property(type cohort_${name} TYPE)
  set_property(GLOBAL PROPERTY COHORT_COMPONENT_${name} ${component})
  set_property(GLOBAL APPEND PROPERTY COHORT_LIBRARIES ${name})
  set_property(GLOBAL APPEND PROPERTY COHORT_DEPS_${component} ${deps})
  set_property(GLOBAL APPEND PROPERTY COHORT_HEADERS_${component} ${headers})
  if(type STREQUAL "STATIC_LIBRARY")
    set_property(GLOBAL APPEND PROPERTY COHORT_FOLDERS_${component} cohort_${name})
  endif()
endfunction()

# cohort_foreign_deps(<component> <all> <public>): what the component's folders need from outside, and the part of it
# that a program which links the installed library needs too. Libtorch is in neither.
function(cohort_foreign_deps component all public)
  get_property(deps GLOBAL PROPERTY COHORT_DEPS_${component})
  list(FILTER deps EXCLUDE REGEX "^cohort::|^cohort_|_headers$")
  list(REMOVE_ITEM deps "" ${TORCH_LIBRARIES})
  list(REMOVE_DUPLICATES deps)
  set(${all} ${deps} PARENT_SCOPE)
  if(COHORT_SHARED AND component STREQUAL "c")
    set(deps "") # its header includes nothing
  elseif(COHORT_SHARED)
    list(FILTER deps INCLUDE REGEX "${COHORT_IN_HEADERS}")
  endif()
  set(${public} ${deps} PARENT_SCOPE)
endfunction()

# cohort_translate(<packages> <modules> <libraries> <dep>...): the find_dependency arguments, pkg-config modules and
# linker flags that stand for these dependencies.
function(cohort_translate packages modules libraries)
  foreach(dep IN LISTS ARGN)
    set(known OFF)
    foreach(row IN LISTS COHORT_FOREIGN)
      # The expression may hold | itself, so the row is split from its end.
      string(REGEX MATCH "^(.+)\\|([^|]*)\\|([^|]*)$" row "${row}")
      set(pattern "${CMAKE_MATCH_1}")
      set(package "${CMAKE_MATCH_2}")
      set(module "${CMAKE_MATCH_3}")
      if(dep MATCHES "${pattern}")
        set(known ON)
        list(APPEND found_packages "${package}")
        if(module)
          string(REGEX REPLACE "${pattern}" "${module}" module "${dep}")
          list(APPEND found_modules "${module}")
        endif()
        break()
      endif()
    endforeach()
    if(NOT known AND dep MATCHES "::")
      message(FATAL_ERROR "${dep} is used by an installed library: add it to COHORT_FOREIGN in CohortInstall.cmake.")
    elseif(NOT known)
      list(APPEND found_libraries -l${dep})
    endif()
  endforeach()
  foreach(list IN ITEMS packages modules libraries)
    list(REMOVE_DUPLICATES found_${list})
    set(${${list}} "${found_${list}}" PARENT_SCOPE)
  endforeach()
endfunction()

# cohort_install_linked_headers(<list> <part>): installs the headers of the list that are links, and takes them from it. A
# file set would install the links, which lead into the source.
function(cohort_install_linked_headers list part)
  foreach(header IN LISTS ${list})
    if(IS_SYMLINK ${header})
      list(REMOVE_ITEM ${list} ${header})
      cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${COHORT_INCLUDE_DIR} OUTPUT_VARIABLE place)
      cmake_path(GET place PARENT_PATH folder)
      file(REAL_PATH ${header} file)
      install(FILES ${file} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT ${part})
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# cohort_add_installed(<component>): the target cohort_installed_<component>, made of the objects of the component's
# folders, and its place in the export set cohort<component>Targets.
function(cohort_add_installed component)
  set(target cohort_installed_${component})
  get_property(folders GLOBAL PROPERTY COHORT_FOLDERS_${component})
  get_property(headers GLOBAL PROPERTY COHORT_HEADERS_${component})
  list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  cohort_parts_of(${component} binaries rest)
  set(version ${PROJECT_VERSION})
  set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(map ${PROJECT_BINARY_DIR}/package/exported.map)
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/exported.map.in ${map} @ONLY)
  if(component STREQUAL "c")
    set(map ${PROJECT_SOURCE_DIR}/comm/c/exported.map)
    cohort_read_version(version ${PROJECT_SOURCE_DIR}/comm/c/cohort.h COHORT_C_MAJOR COHORT_C_MINOR)
    string(REGEX REPLACE "[.].*" "" soversion ${version})
  endif()
  if(COHORT_SHARED)
    add_library(${target} SHARED ${objects})
    # A call inside of the library needs no lookup; nobody replaces single functions of ours.
    target_link_options(${target} PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic-functions)
    set_property(TARGET ${target} PROPERTY LINK_DEPENDS ${map})
    if(NOT COHORT_SANITIZE) # whose functions are defined by the program
      target_link_options(${target} PRIVATE LINKER:-z,defs)
    endif()
  else()
    add_library(${target} STATIC ${objects})
  endif()
  add_dependencies(${target} ${folders})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME cohort_${component}
    EXPORT_NAME ${component} VERSION ${version} SOVERSION ${soversion}
    INSTALL_RPATH "\$ORIGIN" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/package/lib
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/package/lib)
  if(NOT component STREQUAL "c")
    target_compile_features(${target} INTERFACE cxx_std_20)
  endif()
  cohort_install_linked_headers(headers ${rest})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${COHORT_INCLUDE_DIR} FILES ${headers})
  cohort_foreign_deps(${component} all public)
  list(REMOVE_ITEM all ${public})
  list(TRANSFORM all REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>")
  target_link_libraries(${target} PUBLIC ${public} PRIVATE ${all})
  install(TARGETS ${target} EXPORT cohort${component}Targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${binaries} NAMELINK_COMPONENT ${rest}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${rest}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${rest})
endfunction()

# cohort_add_name(<name>): cohort::<name> is part of libcohort_comm too.
function(cohort_add_name name)
  add_library(cohort_installed_${name} INTERFACE)
  set_target_properties(cohort_installed_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(cohort_installed_${name} INTERFACE cohort_installed_comm)
  install(TARGETS cohort_installed_${name} EXPORT cohortcommTargets)
endfunction()

# cohort_install_config(<component> <variable>): installs the component's export set. The variable gets the lines of
# cohortConfig.cmake that find what it needs and read it.
function(cohort_install_config component variable)
  cohort_parts_of(${component} binaries rest)
  install(EXPORT cohort${component}Targets NAMESPACE cohort:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cohort
    COMPONENT ${rest})
  cohort_foreign_deps(${component} all public)
  cohort_translate(packages modules libraries ${public})
  set(lines "")
  foreach(package IN LISTS packages)
    string(APPEND lines "find_dependency(${package})\n")
  endforeach()
  string(APPEND lines "include(\${CMAKE_CURRENT_LIST_DIR}/cohort${component}Targets.cmake)\n")
  set(${variable} "${lines}" PARENT_SCOPE)
endfunction()

# The version of this source, in a header of its own.
function(cohort_install_version)
  set(header ${COHORT_INCLUDE_DIR}/cohort/version.h)
  math(EXPR COHORT_VERSION_NUMBER
    "10000 * ${PROJECT_VERSION_MAJOR} + 100 * ${PROJECT_VERSION_MINOR} + ${PROJECT_VERSION_PATCH}")
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/version.h.in ${header} @ONLY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cohort COMPONENT development)
endfunction()

function(cohort_install_package)
  cohort_install_version()
  cohort_add_installed(comm)
  cohort_add_name(runtime)
  cohort_add_name(mesh)
  cohort_install_config(comm COHORT_CONFIG_COMM)
  cohort_add_installed(c)
  if(COHORT_SHARED)
    target_link_libraries(cohort_installed_c PRIVATE cohort_installed_comm)
  else()
    target_link_libraries(cohort_installed_c PUBLIC cohort_installed_comm)
  endif()
  cohort_install_config(c lines)
  string(APPEND COHORT_CONFIG_COMM "${lines}")
  set(COHORT_CONFIG_TRAINER "")
  if(COHORT_HAVE_TORCH)
    cohort_add_installed(trainer)
    list(TRANSFORM TORCH_LIBRARIES REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>" OUTPUT_VARIABLE torch)
    target_link_libraries(cohort_installed_trainer PUBLIC cohort_installed_comm ${torch})
    cohort_install_config(trainer lines)
    # The libtorch of a program that links the trainer: its list holds paths. The trainer may be a package of its own.
    string(CONCAT COHORT_CONFIG_TRAINER "if(\"trainer\" IN_LIST cohort_FIND_COMPONENTS AND\n"
      "    EXISTS \${CMAKE_CURRENT_LIST_DIR}/cohorttrainerTargets.cmake)\nfind_dependency(Torch)\n${lines}"
      "target_link_libraries(cohort::trainer INTERFACE \${TORCH_LIBRARIES})\nset(cohort_trainer_FOUND ON)\nendif()\n")
  endif()
  set(COHORT_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/cohortConfig.cmake.in
    ${PROJECT_BINARY_DIR}/package/cohortConfig.cmake INSTALL_DESTINATION ${COHORT_CONFIG_DIR})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/cohortConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)

  cohort_foreign_deps(comm all public)
  cohort_translate(packages modules libraries ${public})
  list(JOIN modules " " COHORT_PC_REQUIRES)
  if(COHORT_SHARED)
    set(COHORT_PC_LIBRARIES "-Wl,-rpath,\${libdir} -lcohort_comm")
    set(COHORT_C_PC_REQUIRES "")
    set(COHORT_C_PC_LIBRARIES "-Wl,-rpath,\${libdir} -lcohort_c")
  else()
    list(JOIN libraries " " libraries)
    set(COHORT_PC_LIBRARIES "-lcohort_comm ${libraries} -pthread")
    set(COHORT_C_PC_REQUIRES "Requires: cohort")
    set(COHORT_C_PC_LIBRARIES "-lcohort_c -lcohort_comm -lstdc++")
  endif()
  # Relative, so that the installed tree may be moved.
  file(RELATIVE_PATH COHORT_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  foreach(name IN ITEMS cohort cohort-c)
    configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/package/${name}.pc @ONLY)
  endforeach()

  install(FILES ${PROJECT_BINARY_DIR}/package/cohortConfig.cmake
    ${PROJECT_BINARY_DIR}/package/cohortConfigVersion.cmake DESTINATION ${COHORT_CONFIG_DIR} COMPONENT development)
  install(FILES ${PROJECT_BINARY_DIR}/package/cohort.pc ${PROJECT_BINARY_DIR}/package/cohort-c.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endfunction()
