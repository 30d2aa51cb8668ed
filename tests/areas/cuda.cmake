# The CUDA backend from outside: plain C programs that load the plugin, and skip
# (exit code 77) where there is none or no GPU.
quire_test(cuda_attention_test
  SOURCES property/cuda_attention_test.c support/attn_world.c
  LIBRARIES test_support attention m
  LABELS gpu TIMEOUT 600)
quire_test(cuda_dense_test
  SOURCES property/cuda_dense_test.c support/attn_world.c
  LIBRARIES test_support attention m
  LABELS gpu TIMEOUT 600)
quire_test(cuda_model_test
  SOURCES property/cuda_model_test.c
  LIBRARIES model_driver model_cpu_inside test_support m
  ARGS ${CMAKE_SOURCE_DIR}/deploy/models/tales-7m
  LABELS gpu TIMEOUT 600)
quire_test(cuda_linear_test
  SOURCES property/cuda_linear_test.c
  LIBRARIES model_inside model_cpu_inside test_support m
  LABELS gpu TIMEOUT 600)
quire_test(cuda_linear_bench NO_RUN
  SOURCES bench/cuda_linear_bench.c
  LIBRARIES model_inside model_cpu_inside test_support)
quire_test(attention_bench NO_RUN
  SOURCES bench/attention_bench.c
  LIBRARIES attention m)
quire_runs_here(runs gpu)
if(runs)
  file(GLOB model_fixtures CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/conformance/models/*/fixture.json)
  list(TRANSFORM model_fixtures REPLACE "/fixture.json$" "")
  quire_add_test(model_golden_cuda 300 gpu $<TARGET_FILE:model_golden> --backend cuda
    ${CMAKE_SOURCE_DIR}/deploy/models/tales-7m)
  quire_add_test(model_conformance_cuda 600 gpu $<TARGET_FILE:model_conformance> --backend cuda
    ${model_fixtures})
  quire_add_test(mla_forms_cuda 600 gpu $<TARGET_FILE:mla_forms_test> --backend cuda
    ${model_fixtures})
endif()
quire_test(cuda_planner_test
  SOURCES unit/cuda_planner_test.c
  LIBRARIES test_support attention attention_cuda_view_inside
  LABELS unit)
quire_test(cuda_room_test
  SOURCES unit/cuda_room_test.c
  LIBRARIES test_support attention attention_cuda_view_inside
  LABELS unit)
get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
foreach(name cuda_attention_test cuda_dense_test cuda_linear_test cuda_model_test model_golden_cuda
    model_conformance_cuda mla_forms_cuda)
  if(TEST ${name}.${preset})
    set_tests_properties(${name}.${preset} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endforeach()
