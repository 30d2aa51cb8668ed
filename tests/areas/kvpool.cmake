# The pool, and the layout and step plan it shares with the others.
foreach(name kv_layout_test step_plan_test)
  quire_test(${name} SOURCES unit/${name}.c
    LIBRARIES test_support proto_plan quire::cmocka LABELS unit)
endforeach()
foreach(name kvpool_test kvpool_prefix_test kvpool_window_test kvpool_ledger_test
             kvpool_pin_test kvpool_map_test)
  quire_test(${name} SOURCES unit/${name}.c
    LIBRARIES test_support kvpool_inside quire::cmocka LABELS unit)
endforeach()
quire_test(kvpool_property SOURCES property/kvpool_property.c
  LIBRARIES test_support kvpool_inside quire::cmocka LABELS property)
quire_test(kvpool_alloc_test SOURCES fault/kvpool_alloc_test.c
  LIBRARIES test_support kvpool_inside quire::cmocka LABELS fault)
target_link_options(kvpool_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign)
quire_test(pool_bench SOURCES bench/pool_bench.c
  LIBRARIES test_support kvpool_inside NO_RUN)
