# cohort_manual(<program>): its manual page and its completion for bash, zsh and fish, printed by the program itself
# after it is linked, in <build>/share, and installed where shells and man look. Not where programs of the build cannot
# run on this machine.
include_guard(GLOBAL)

function(cohort_manual program)
  if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
    return()
  endif()
  set(share ${CMAKE_BINARY_DIR}/share)
  set(commands "")
  foreach(row IN ITEMS "man:man/man1/${program}.1" "bash:bash-completion/completions/${program}"
                       "zsh:zsh/site-functions/_${program}" "fish:fish/vendor_completions.d/${program}.fish")
    string(REGEX MATCH "^([a-z]+):(.*)/([^/]+)$" row "${row}")
    set(form ${CMAKE_MATCH_1})
    set(folder ${CMAKE_MATCH_2})
    set(file ${share}/${folder}/${CMAKE_MATCH_3})
    file(MAKE_DIRECTORY ${share}/${folder})
    list(APPEND commands COMMAND $<TARGET_FILE:${program}> --describe ${form} > ${file})
    install(FILES ${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder})
  endforeach()
  add_custom_command(TARGET ${program} POST_BUILD ${commands} COMMENT "Describing ${program}" VERBATIM)
endfunction()
