# The rules that no compiler checks, and a proof that the checker sees faults.
if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT QUIRE_SANITIZE STREQUAL "thread")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME check_tree COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_tree)
  add_test(NAME check_symbols COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_tree
    --symbols ${CMAKE_BINARY_DIR})
  add_test(NAME check_docs COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_docs)
  add_test(NAME check_docs_sees_faults
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/unit/check_docs_test.py)
  add_test(NAME check_tree_sees_faults
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/unit/check_tree_test.py)
  get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
  quire_add_test(format 300 tree ${CMAKE_SOURCE_DIR}/tests/check_format)
  set_tests_properties(format.${preset} PROPERTIES SKIP_RETURN_CODE 77)
  quire_add_test(tidy 1500 tree ${CMAKE_SOURCE_DIR}/tests/check_tidy ${CMAKE_BINARY_DIR})
  set_tests_properties(tidy.${preset} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2)
  quire_add_test(check_tidy_test "" tree
    ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/unit/check_tidy_test.py)
  set_tests_properties(check_tidy_test.${preset} PROPERTIES SKIP_RETURN_CODE 77)
  quire_add_test(closing_lines_test "" unit
    ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/unit/closing_lines_test.py)
endif()

# What `cmake --install` puts where, and that it runs from there.
quire_runs_here(runs release)
if(TARGET quired AND runs AND NOT QUIRE_SANITIZE)
  quire_add_test(install_test "" release ${CMAKE_SOURCE_DIR}/tests/e2e/install_test
    ${CMAKE_BINARY_DIR} ${PROJECT_VERSION})
endif()
