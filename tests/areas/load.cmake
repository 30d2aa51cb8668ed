# The streaming load client; tests/e2e drives it against the daemon.
quire_test(stream_load NO_RUN
  SOURCES load/stream_load.c load/load_report.c
  LIBRARIES quire::uv quire::llhttp quire::cjson)
