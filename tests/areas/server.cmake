# The daemon's parts.  Its whole is driven by tests/e2e.
quire_test(options_test SOURCES unit/options_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(log_test SOURCES unit/log_test.c
  LIBRARIES test_support server_base proto_text quire::cmocka LABELS unit)
quire_test(sizing_test SOURCES unit/sizing_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(metrics_test SOURCES unit/metrics_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(mailbox_test SOURCES unit/mailbox_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit threads)
quire_test(jobs_test SOURCES unit/jobs_test.c
  LIBRARIES test_support server_jobs quire::cmocka LABELS unit threads)
quire_test(stops_test SOURCES unit/stops_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit property)
quire_test(http_test SOURCES unit/http_test.c
  LIBRARIES test_support server_http_inside quire::cmocka LABELS unit property)
quire_test(choice_test SOURCES unit/choice_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(query_test SOURCES unit/query_test.c
  LIBRARIES test_support server_http_inside quire::cmocka LABELS unit)
quire_test(routes_test SOURCES unit/routes_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(steps_test SOURCES unit/steps_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS unit)
quire_test(engine_fault_test SOURCES fault/engine_fault_test.c
  LIBRARIES test_support server_inside quire::cmocka LABELS fault threads)
quire_test(server_alloc_test SOURCES fault/server_alloc_test.c
  LIBRARIES test_support server_inside server_http_inside quire::cmocka LABELS fault)
target_link_options(server_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign)
if(QUIRE_FUZZ)
  quire_test(http_libfuzzer SOURCES fuzz/http_libfuzzer.c LIBRARIES server_http_inside NO_RUN)
  target_compile_options(http_libfuzzer PRIVATE -fsanitize=fuzzer)
  target_link_options(http_libfuzzer PRIVATE -fsanitize=fuzzer)
endif()
