# The model: loading, forward pass, sampling.
add_library(model_driver STATIC support/model_driver.c)
target_include_directories(model_driver PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(model_driver PUBLIC quire_flags model_inside model_load_inside attention_inside)

quire_test(model_golden SOURCES conformance/model_golden.c
  LIBRARIES model_driver quire::cjson LABELS conformance
  ARGS ${CMAKE_SOURCE_DIR}/deploy/models/tales-7m)

add_library(model_fixture STATIC support/fixture.c)
target_include_directories(model_fixture PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(model_fixture PUBLIC quire_flags proto_text proto_number quire::cjson m)

file(GLOB model_fixtures CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_SOURCE_DIR}/conformance/models/*/fixture.json)
list(TRANSFORM model_fixtures REPLACE "/fixture.json$" "")
quire_test(model_conformance SOURCES conformance/model_conformance.c
  LIBRARIES model_driver model_fixture LABELS conformance ARGS ${model_fixtures})

quire_test(mla_forms_test SOURCES property/mla_forms_test.c
  LIBRARIES model_driver model_fixture m LABELS property ARGS ${model_fixtures})

quire_test(step_order_test SOURCES unit/step_order_test.c
  LIBRARIES test_support model_inside model_cpu_inside model_step_inside model_load_inside quire::cmocka LABELS unit)
quire_test(rope_op_test SOURCES unit/rope_op_test.c
  LIBRARIES test_support model_inside model_cpu_inside model_step_inside model_load_inside quire::cmocka LABELS unit)
quire_test(prefill_again_test SOURCES property/prefill_again_test.c
  LIBRARIES model_fixture model_inside model_cpu_inside model_step_inside model_load_inside scheduler m LABELS property ARGS ${model_fixtures})

quire_test(dtype_range_test SOURCES property/dtype_range_test.c
  LIBRARIES test_support model_driver model_fixture model_inside model_cpu_inside model_step_inside model_load_inside scheduler quire::cmocka m
  LABELS property)

# Speed, by hand.
quire_test(make_model NO_RUN SOURCES bench/make_model.c LIBRARIES model_fixture)
quire_test(engine_bench NO_RUN SOURCES bench/engine_bench.c bench/engine_loop.c bench/engine_trace.c
  LIBRARIES model_driver scheduler)

quire_test(backend_test SOURCES unit/backend_test.c
  LIBRARIES test_support model_inside model_cpu_inside model_step_inside model_load_inside quire::cmocka LABELS unit
  ARGS ${CMAKE_SOURCE_DIR}/deploy/models/tales-7m)

foreach(name model_files_test sampling_test step_resolve_test cpu_linear_test)
  quire_test(${name} SOURCES unit/${name}.c
    LIBRARIES test_support model_inside model_cpu_inside model_step_inside model_load_inside model_fixture quire::cjson quire::cmocka m LABELS unit)
endforeach()

quire_test(model_alloc_test SOURCES fault/model_alloc_test.c
  LIBRARIES test_support model_inside model_cpu_inside model_step_inside model_load_inside model_fixture quire::cjson quire::cmocka LABELS fault)
target_link_options(model_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)

file(GLOB model_configs CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_SOURCE_DIR}/conformance/models/*/config*.json)
quire_test(model_files_smoke SOURCES fuzz/model_files_smoke.c fuzz/model_files_fuzz.c
  LIBRARIES model_inside model_cpu_inside model_step_inside model_load_inside LABELS fuzz ARGS 40000 ${model_configs})
if(QUIRE_FUZZ)
  quire_test(model_files_libfuzzer SOURCES fuzz/model_files_libfuzzer.c fuzz/model_files_fuzz.c
    LIBRARIES model_inside model_cpu_inside model_step_inside model_load_inside NO_RUN)
  target_compile_options(model_files_libfuzzer PRIVATE -fsanitize=fuzzer)
  target_link_options(model_files_libfuzzer PRIVATE -fsanitize=fuzzer)
endif()
