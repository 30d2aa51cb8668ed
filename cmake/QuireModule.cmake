# Compile rules shared by every target, and the two ways to declare one.

option(QUIRE_WERROR "Warnings are errors: in every preset that developers build, not in what users build" ON)

add_library(quire_flags INTERFACE)
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra $<$<BOOL:${QUIRE_WERROR}>:-Werror> -Wshadow -Wvla
    -Wstrict-prototypes -Wmissing-prototypes -fno-omit-frame-pointer
    -ffp-contract=off>)
target_compile_definitions(quire_flags INTERFACE _GNU_SOURCE
  $<$<CONFIG:Debug>:QUIRE_DEBUG=1>)
if(QUIRE_FUZZ) # coverage of every folder, not of the fuzz target alone
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
endif()
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all>)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()

# quire_module(NAME [FOLDER folder] PUBLIC header... [DEPENDS module...]
#              [SOURCES file...] [LIBRARIES lib...])
# The static library of one room: of a top-level folder's own files, or of a
# folder inside one (FOLDER, from the root; the folder's name without it).
# `#include "FOLDER/x.h"` reaches the PUBLIC headers for the targets that link
# the module, every header of the folder for the module itself and for what
# links NAME_inside (its tests), and nothing for anybody else.
function(quire_module name)
  cmake_parse_arguments(M "" "FOLDER" "PUBLIC;DEPENDS;SOURCES;LIBRARIES" ${ARGN})
  if(NOT M_FOLDER)
    set(M_FOLDER ${name})
  endif()
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.h *.cuh)
  quire_view(public ${name} ${M_FOLDER} ${M_PUBLIC})
  quire_view(inside ${name}.inside ${M_FOLDER} ${headers})
  if(M_SOURCES)
    add_library(${name} STATIC ${M_SOURCES})
    target_include_directories(${name} PUBLIC ${public} PRIVATE ${inside})
    target_link_libraries(${name} PUBLIC quire_flags ${M_DEPENDS} PRIVATE ${M_LIBRARIES})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${public})
    target_link_libraries(${name} INTERFACE quire_flags ${M_DEPENDS})
  endif()
  add_library(${name}_inside INTERFACE)
  target_include_directories(${name}_inside INTERFACE ${inside})
  target_link_libraries(${name}_inside INTERFACE ${name})
endfunction()

# quire_view(OUT NAME FOLDER header...): a folder that shows only these headers,
# as FOLDER/header.
function(quire_view out name folder)
  set(view ${CMAKE_BINARY_DIR}/include/${name})
  file(REMOVE_RECURSE ${view})
  file(MAKE_DIRECTORY ${view}/${folder})
  foreach(header ${ARGN})
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${header} ${view}/${folder}/${header} SYMBOLIC)
  endforeach()
  set(${out} ${view} PARENT_SCOPE)
endfunction()

# quire_cuda_objects(NAME): the compile rules of an object library that becomes
# part of quire_cuda.so.
function(quire_cuda_objects name)
  set_target_properties(${name} PROPERTIES
    CUDA_STANDARD 20
    CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden
    C_VISIBILITY_PRESET hidden)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo
    -Xcompiler=-Wall,-Wextra,-Werror -Werror=all-warnings>)
  target_link_libraries(${name} PRIVATE proto)
endfunction()

# quire_test(NAME SOURCES file... LIBRARIES target... [LABELS l...] [ARGS a...]
#            [TIMEOUT s] [NO_RUN])
# A test program build/<preset>/tests/NAME.  ctest runs it, unless NO_RUN, in
#   debug    always
#   release  with a label of: conformance, e2e, load, release, gpu
#   tsan     with the label threads
function(quire_test name)
  cmake_parse_arguments(T "NO_RUN" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE quire_flags ${T_LIBRARIES})
  quire_runs_here(runs ${T_LABELS})
  if(runs AND NOT T_NO_RUN)
    quire_add_test(${name} "${T_TIMEOUT}" "${T_LABELS}" $<TARGET_FILE:${name}> ${T_ARGS})
  endif()
endfunction()

# Whether a test with these labels runs in the configured build.
function(quire_runs_here out)
  set(runs OFF)
  if(QUIRE_SANITIZE STREQUAL "thread")
    set(wanted threads)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(runs ON)
  else()
    set(wanted conformance e2e load release gpu)
  endif()
  foreach(label ${ARGN})
    if(label IN_LIST wanted)
      set(runs ON)
    endif()
  endforeach()
  set(${out} ${runs} PARENT_SCOPE)
endfunction()

# quire_add_test(NAME TIMEOUT LABELS command...): register any command, named
# NAME.<preset>, run from the source folder; no TIMEOUT means 300 s.
function(quire_add_test name timeout labels)
  get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
  if(NOT timeout)
    set(timeout 300)
  endif()
  add_test(NAME ${name}.${preset} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name}.${preset} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout})
endfunction()
