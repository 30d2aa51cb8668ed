# The attention operator: conformance, rules, properties.
quire_test(attention_conformance
  SOURCES conformance/attention_conformance.c conformance/attn_case.c
  LIBRARIES attention_inside quire::cjson m
  ARGS tests/conformance/attention
  LABELS conformance)

quire_test(attention_property_test
  SOURCES property/attention_property_test.c oracle/attn_scene.c oracle/attn_oracle.c
  LIBRARIES test_support attention_inside attention_cpu_inside quire::cmocka m
  LABELS property)

quire_test(attention_rules_test
  SOURCES unit/attention_rules_test.c
  LIBRARIES test_support attention_inside attention_rules_inside quire::cmocka
  LABELS unit)

quire_test(attention_cpu_test
  SOURCES unit/attention_cpu_test.c oracle/attn_oracle.c
  LIBRARIES test_support attention_inside attention_cpu_inside quire::cmocka m
  LABELS unit)

quire_test(attention_window_test
  SOURCES property/attention_window_test.c
  LIBRARIES test_support attention_inside attention_cpu_inside quire::cmocka m
  LABELS property)

# attention/README.md's table is this program's output.
quire_test(attention_feature_table
  SOURCES unit/attention_feature_table.c
  LIBRARIES attention attention_cuda_view_inside
  ARGS --check attention/README.md ${CMAKE_BINARY_DIR}/quire_cuda.so
  LABELS unit)

quire_test(attention_plan_smoke
  SOURCES fuzz/attention_plan_smoke.c fuzz/attention_plan_fuzz.c
  LIBRARIES test_support attention
  LABELS fuzz)
if(QUIRE_FUZZ)
  quire_test(attention_plan_libfuzzer
    SOURCES fuzz/attention_plan_libfuzzer.c fuzz/attention_plan_fuzz.c
    LIBRARIES attention NO_RUN)
  target_compile_options(attention_plan_libfuzzer PRIVATE -fsanitize=fuzzer)
  target_link_options(attention_plan_libfuzzer PRIVATE -fsanitize=fuzzer)
endif()

quire_test(attention_cpu_bench SOURCES bench/attention_cpu_bench.c LIBRARIES attention NO_RUN)

quire_test(attention_alloc_test
  SOURCES fault/attention_alloc_test.c
  LIBRARIES test_support attention_inside quire::cmocka
  LABELS fault)
target_link_options(attention_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
