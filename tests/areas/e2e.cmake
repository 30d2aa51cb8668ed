# Real clients against the real daemon: every tests/e2e/NAME_test.mjs, on the
# daemon of the configured build.
quire_runs_here(runs e2e)
if(TARGET quired AND runs)
  get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/e2e/*_test.mjs)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    quire_add_test(e2e_${name} 900 "e2e" ${CMAKE_COMMAND} -E env QUIRED=$<TARGET_FILE:quired>
      ${CMAKE_SOURCE_DIR}/tests/e2e/run-one ${script})
    set_tests_properties(e2e_${name}.${preset} PROPERTIES SKIP_RETURN_CODE 77)
    if(name STREQUAL prefix_test AND preset STREQUAL release) # it compares latencies
      set_tests_properties(e2e_${name}.${preset} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endif()
