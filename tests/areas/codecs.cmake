# The codecs of proto/: JSON, OpenAI bodies, UTF-8, metrics exposition.
foreach(name json_test openai_request_test openai_response_test utf8_test prometheus_test)
  quire_test(${name} SOURCES unit/${name}.c
    LIBRARIES test_support proto quire::cjson quire::cmocka Threads::Threads m LABELS unit)
endforeach()
