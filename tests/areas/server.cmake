# The daemon's parts.  Its whole is driven by tests/e2e.
quire_test(options_test SOURCES unit/options_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(step_log_test SOURCES unit/step_log_test.c
  LIBRARIES test_support server_engine_inside quire::cmocka LABELS unit)
quire_test(loader_test SOURCES unit/loader_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(drain_test SOURCES unit/drain_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(log_test SOURCES unit/log_test.c
  LIBRARIES test_support server_base proto_text quire::cmocka LABELS unit)
quire_test(ids_test SOURCES unit/ids_test.c
  LIBRARIES test_support server_base quire::cmocka LABELS unit)
quire_test(sizing_test SOURCES unit/sizing_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(metrics_test SOURCES unit/metrics_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(mailbox_test SOURCES unit/mailbox_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit threads)
quire_test(jobs_test SOURCES unit/jobs_test.c
  LIBRARIES test_support server_jobs quire::cmocka LABELS unit threads)
quire_test(generate_test SOURCES unit/generate_test.c
  LIBRARIES test_support server_generate_inside quire::cmocka LABELS unit threads)
target_link_options(generate_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign)
quire_test(stops_test SOURCES unit/stops_test.c
  LIBRARIES test_support server_generate_inside quire::cmocka LABELS unit property)
quire_test(http_test SOURCES unit/http_test.c
  LIBRARIES test_support server_http_inside quire::cmocka LABELS unit property)
add_library(http_rig STATIC support/http_rig.c)
target_link_libraries(http_rig PUBLIC test_support server_http_inside)
foreach(name connection_test reply_test listener_test)
  quire_test(${name} SOURCES unit/${name}.c LIBRARIES http_rig quire::cmocka LABELS unit)
endforeach()
quire_test(dispatch_test SOURCES unit/dispatch_test.c
  LIBRARIES http_rig server_routes_inside server_inside quire::cmocka LABELS unit)
quire_test(http_smoke SOURCES fuzz/http_smoke.c fuzz/http_fuzz.c
  LIBRARIES http_rig quire::cmocka LABELS fuzz)
quire_test(choice_test SOURCES unit/choice_test.c
  LIBRARIES test_support server_generate_inside quire::cmocka LABELS unit)
quire_test(query_test SOURCES unit/query_test.c
  LIBRARIES test_support server_http_inside quire::cmocka LABELS unit)
quire_test(routes_test SOURCES unit/routes_test.c
  LIBRARIES test_support server_routes_inside server_inside quire::cmocka LABELS unit)
quire_test(steps_test SOURCES unit/steps_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(engine_fault_test SOURCES fault/engine_fault_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS fault threads)
quire_test(http_alloc_test SOURCES fault/http_alloc_test.c
  LIBRARIES http_rig quire::cmocka LABELS fault)
target_link_options(http_alloc_test PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
quire_test(server_alloc_test SOURCES fault/server_alloc_test.c
  LIBRARIES test_support server_inside server_generate_inside server_http_inside quire::cmocka LABELS fault)
target_link_options(server_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign)
if(QUIRE_FUZZ)
  foreach(pair http_libfuzzer:http_fuzz_parser http_connections_libfuzzer:http_fuzz_connections)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 name)
    list(GET pair 1 function)
    quire_test(${name} NO_RUN
      SOURCES fuzz/http_libfuzzer.c fuzz/http_fuzz.c LIBRARIES http_rig quire::cmocka)
    target_compile_definitions(${name} PRIVATE FUZZ_TARGET=${function})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
