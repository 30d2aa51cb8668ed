# The codecs of proto/: JSON, OpenAI bodies, UTF-8, metrics exposition.
set(codec_libraries test_support proto_openai_inside proto_metrics quire::cjson quire::cmocka Threads::Threads m)
foreach(name json_test openai_request_test openai_response_test utf8_test prometheus_test)
  quire_test(${name} SOURCES unit/${name}.c LIBRARIES ${codec_libraries} LABELS unit)
endforeach()
quire_test(buf_test SOURCES unit/buf_test.c LIBRARIES ${codec_libraries} LABELS unit)
target_link_options(buf_test PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
quire_test(codec_property SOURCES property/codec_property.c
  LIBRARIES ${codec_libraries} LABELS property)
quire_test(codec_alloc_test SOURCES fault/codec_alloc_test.c
  LIBRARIES ${codec_libraries} LABELS fault)
target_link_options(codec_alloc_test PRIVATE
  -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
quire_test(request_smoke SOURCES fuzz/request_smoke.c fuzz/request_fuzz.c
  LIBRARIES ${codec_libraries} LABELS fuzz)
quire_test(codec_bench SOURCES bench/codec_bench.c LIBRARIES ${codec_libraries} NO_RUN)
if(QUIRE_FUZZ)
  quire_test(request_libfuzzer SOURCES fuzz/request_libfuzzer.c fuzz/request_fuzz.c
    LIBRARIES ${codec_libraries} NO_RUN)
  target_compile_options(request_libfuzzer PRIVATE -fsanitize=fuzzer)
  target_link_options(request_libfuzzer PRIVATE -fsanitize=fuzzer)
endif()
