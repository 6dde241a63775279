# The files that `cmake --install` leaves beside the libraries: find_package(cohort) and cohort.pc.
#
# The libraries are static, so a program that links them also links their dependencies. These are taken from the
# declarations of the folders. Libraries that need gRPC or libtorch form components of their own ("grpc", "trainer"). A
# program that only communicates needs neither.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

# How a dependency's target is found again: <regular expression>|<find_dependency arguments>|<pkg-config module>.
set(COHORT_FOREIGN
  "^absl::(.+)$|absl CONFIG|absl_\\1"
  "^protobuf::libprotobuf$|Protobuf|protobuf"
  "^gRPC::.+$|gRPC CONFIG|grpc++"
  "^torch(_library)?$|Torch|"
  "^Threads::Threads$|Threads|"
  "^OpenSSL::.+$|OpenSSL|openssl")

# cohort_component_of(<variable> <dep>...): "" (base), "grpc" or "trainer": the component a library with these
# dependencies belongs to.
function(cohort_component_of variable)
  set(component "")
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "^cohort::(.+)$")
      get_property(inherited GLOBAL PROPERTY COHORT_COMPONENT_${CMAKE_MATCH_1})
    elseif(dep MATCHES "^torch")
      set(inherited trainer)
    elseif(dep MATCHES "^gRPC::")
      set(inherited grpc)
    else()
      set(inherited "")
    endif()
    if(inherited AND component AND NOT inherited STREQUAL component)
      message(FATAL_ERROR "A library cannot need both gRPC and libtorch: ${ARGN}")
    elseif(inherited)
      set(component ${inherited})
    endif()
  endforeach()
  set(${variable} "${component}" PARENT_SCOPE)
endfunction()

# Called by cohort_library: adds the library to its component's export set and remembers what it needs.
function(cohort_install_library name deps)
  set(target cohort_${name})
  cohort_component_of(component ${deps})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  get_target_property(header_sets ${target} INTERFACE_HEADER_SETS)
  set(headers "")
  if(header_sets)
    set(headers FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
  install(TARGETS ${target} EXPORT cohort${component}Targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${headers})
  get_target_property(type ${target} TYPE)
  set_property(GLOBAL PROPERTY COHORT_COMPONENT_${name} "${component}")
  set_property(GLOBAL APPEND PROPERTY COHORT_LIBRARIES ${name})
  set_property(GLOBAL APPEND PROPERTY COHORT_DEPS_${component} ${deps})
  if(type STREQUAL "STATIC_LIBRARY")
    set_property(GLOBAL APPEND PROPERTY COHORT_ARCHIVES_${component} -l${target})
  endif()
endfunction()

# cohort_foreign(<component> <packages variable> <modules variable> <libraries variable>): translates what the
# component's libraries need from outside.
function(cohort_foreign component packages modules libraries)
  get_property(deps GLOBAL PROPERTY COHORT_DEPS_${component})
  foreach(dep IN LISTS deps)
    if(dep MATCHES "^cohort::|^cohort_|_headers$")
      continue()
    endif()
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

# cohort_config_lines(<component> <variable>): the lines of cohortConfig.cmake that find what the component needs.
function(cohort_config_lines component variable)
  set(lines "")
  cohort_foreign("${component}" packages modules libraries)
  foreach(package IN LISTS packages)
    string(APPEND lines "find_dependency(${package})\n")
  endforeach()
  set(${variable} "${lines}" PARENT_SCOPE)
endfunction()

function(cohort_install_package)
  set(COHORT_CONFIG_COMPONENTS "")
  set(components "")
  foreach(component IN ITEMS "" grpc trainer)
    get_property(deps GLOBAL PROPERTY COHORT_ARCHIVES_${component})
    if(NOT deps)
      continue()
    endif()
    list(APPEND components ${component})
    install(EXPORT cohort${component}Targets FILE cohort${component}Targets.cmake NAMESPACE cohort::
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)
    cohort_config_lines("${component}" lines)
    if(component)
      string(APPEND COHORT_CONFIG_COMPONENTS "if(\"${component}\" IN_LIST cohort_FIND_COMPONENTS)\n${lines}"
        "include(\${CMAKE_CURRENT_LIST_DIR}/cohort${component}Targets.cmake)\n"
        "set(cohort_${component}_FOUND ON)\nendif()\n")
    else()
      set(COHORT_CONFIG_BASE "${lines}")
    endif()
  endforeach()
  string(REPLACE ";" " " COHORT_CONFIG_KNOWN "${components}")
  set(COHORT_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/cohort)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/cohortConfig.cmake.in
    ${PROJECT_BINARY_DIR}/package/cohortConfig.cmake INSTALL_DESTINATION ${COHORT_CONFIG_DIR})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/cohortConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)

  cohort_foreign("" packages modules libraries)
  get_property(archives GLOBAL PROPERTY COHORT_ARCHIVES_)
  list(REVERSE archives) # dependants first, as the linker reads them
  list(JOIN archives " " COHORT_PC_ARCHIVES)
  list(JOIN modules " " COHORT_PC_REQUIRES)
  list(JOIN libraries " " COHORT_PC_LIBRARIES)
  # Relative, so that the installed tree may be moved.
  file(RELATIVE_PATH COHORT_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/cohort.pc.in ${PROJECT_BINARY_DIR}/package/cohort.pc @ONLY)

  install(FILES ${PROJECT_BINARY_DIR}/package/cohortConfig.cmake
    ${PROJECT_BINARY_DIR}/package/cohortConfigVersion.cmake DESTINATION ${COHORT_CONFIG_DIR})
  install(FILES ${PROJECT_BINARY_DIR}/package/cohort.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
