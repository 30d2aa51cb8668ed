# Real clients against the real daemon: every tests/e2e/NAME_test.mjs, on the
# daemon of the configured build.
find_program(NODE node)
if(TARGET quired)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/e2e/*_test.mjs)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    quire_runs_here(runs e2e)
    if(runs)
      quire_add_test(e2e_${name} 900 "e2e" ${CMAKE_COMMAND} -E env QUIRED=$<TARGET_FILE:quired>
        ${NODE} --test ${script})
    endif()
  endforeach()
endif()
