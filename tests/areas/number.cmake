# Number formats and shared arithmetic: exhaustively, against naive definitions.
quire_test(number_test SOURCES unit/number_test.c
  LIBRARIES test_support proto_number proto_plan quire::cmocka m LABELS unit)
