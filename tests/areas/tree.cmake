# The rules that no compiler checks, and a proof that the checker sees faults.
if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT QUIRE_SANITIZE STREQUAL "thread")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME check_tree COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_tree)
  add_test(NAME check_symbols COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/check_tree
    --symbols ${CMAKE_BINARY_DIR})
  add_test(NAME check_tree_sees_faults
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/unit/check_tree_test.py)
endif()
