# Chat templates: the interpreter against Jinja2, its marks, bounds and errors.
set(own ${CMAKE_SOURCE_DIR}/tests/conformance/templates/own)
quire_test(template_conformance NO_RUN
  SOURCES conformance/template_conformance.c LIBRARIES model_chat_inside)
quire_test(chat_template_test SOURCES unit/chat_template_test.c
  LIBRARIES test_support model_chat_inside quire::cmocka LABELS unit)
quire_test(template_smoke SOURCES fuzz/template_smoke.c fuzz/template_fuzz.c
  LIBRARIES model_chat_inside LABELS fuzz
  ARGS 4000 ${own}/language.jinja ${own}/chat.jinja)
if(QUIRE_FUZZ)
  quire_test(template_libfuzzer SOURCES fuzz/template_libfuzzer.c fuzz/template_fuzz.c
    LIBRARIES model_chat_inside NO_RUN)
  target_compile_options(template_libfuzzer PRIVATE -fsanitize=fuzzer)
  target_link_options(template_libfuzzer PRIVATE -fsanitize=fuzzer)
endif()

quire_runs_here(runs conformance)
if(runs)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(compare ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/conformance/templates/against_jinja2.py
    $<TARGET_FILE:template_conformance>)
  get_filename_component(preset ${CMAKE_BINARY_DIR} NAME)
  quire_add_test(templates_own "" conformance ${compare} ${CMAKE_BINARY_DIR}/templates-own ${own})
  quire_add_test(templates_published "" conformance ${compare}
    ${CMAKE_BINARY_DIR}/templates-published
    ${CMAKE_SOURCE_DIR}/tests/e2e/node_modules/@huggingface/ollama-utils/src/chat-template-automap.ts)
  set_tests_properties(templates_own.${preset} templates_published.${preset}
    PROPERTIES SKIP_RETURN_CODE 77)
endif()
