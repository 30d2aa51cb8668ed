# The scheduler over the real pool, with a model made of hashes.
add_library(sched_world STATIC property/sched_world.c)
target_link_libraries(sched_world PUBLIC test_support scheduler_inside)

quire_test(policy_test SOURCES unit/policy_test.c
  LIBRARIES test_support scheduler_inside quire::cmocka LABELS unit)
quire_test(sched_test SOURCES unit/sched_test.c
  LIBRARIES kvpool_inside sched_world scheduler quire::cmocka LABELS unit)
quire_test(sched_check_test SOURCES unit/sched_check_test.c
  LIBRARIES sched_world scheduler_inside quire::cmocka LABELS unit)
quire_test(sched_order_test SOURCES unit/sched_order_test.c
  LIBRARIES sched_world scheduler quire::cmocka LABELS unit)
quire_test(sched_property SOURCES property/sched_property.c
  LIBRARIES sched_world scheduler quire::cmocka LABELS property)
quire_test(sched_alloc_test SOURCES fault/sched_alloc_test.c
  LIBRARIES sched_world scheduler quire::cmocka LABELS fault)
target_link_options(sched_alloc_test PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign)
quire_test(sched_bench NO_RUN SOURCES bench/sched_bench.c LIBRARIES scheduler_inside)
quire_test(sim SOURCES sim/sim.c sim/trace.c sim/gpu.c sim/tally.c
  LIBRARIES test_support scheduler_inside m LABELS property
  ARGS --requests 1500 --blocks 3000 --trace burst)
