# The CUDA backend from outside: plain C programs that load the plugin, and skip
# (exit code 77) where there is none or no GPU.
quire_test(cuda_attention_test
  SOURCES property/cuda_attention_test.c support/attn_world.c
  LIBRARIES test_support attention m
  LABELS gpu TIMEOUT 600)
quire_test(attention_bench NO_RUN
  SOURCES bench/attention_bench.c
  LIBRARIES attention m)
get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
if(TEST cuda_attention_test.${preset})
  set_tests_properties(cuda_attention_test.${preset} PROPERTIES SKIP_RETURN_CODE 77)
endif()
