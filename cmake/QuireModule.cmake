# Compile rules shared by every target, and the two ways to declare one.

add_library(quire_flags INTERFACE)
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Werror -Wshadow -Wvla
    -Wstrict-prototypes -Wmissing-prototypes -fno-omit-frame-pointer
    -ffp-contract=off>)
target_compile_definitions(quire_flags INTERFACE _GNU_SOURCE
  $<$<CONFIG:Debug>:QUIRE_DEBUG=1>)
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all>)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()

# quire_module(NAME DEPENDS folder... SOURCES file... [LIBRARIES lib...])
# The static library of one top-level folder.  `#include "NAME/x.h"` works for
# the targets that link it and for no other.
function(quire_module name)
  cmake_parse_arguments(M "" "" "DEPENDS;SOURCES;LIBRARIES" ${ARGN})
  set(view ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${view}/${name} SYMBOLIC)
  add_library(${name} STATIC ${M_SOURCES})
  target_include_directories(${name} PUBLIC ${view})
  target_link_libraries(${name} PUBLIC quire_flags ${M_DEPENDS} PRIVATE ${M_LIBRARIES})
endfunction()

# quire_test(NAME SOURCES file... LIBRARIES target... [LABELS l...] [ARGS a...]
#            [TIMEOUT s] [NO_RUN])
# A test program build/<preset>/tests/NAME, registered with ctest unless NO_RUN.
function(quire_test name)
  cmake_parse_arguments(T "NO_RUN" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE quire_flags ${T_LIBRARIES})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(NOT T_NO_RUN)
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS}
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT})
  endif()
endfunction()
