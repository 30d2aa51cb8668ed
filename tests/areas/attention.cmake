# The attention operator: conformance, rules, properties.
quire_test(attention_conformance
  SOURCES conformance/attention_conformance.c conformance/attn_case.c
  LIBRARIES attention quire::cjson m
  ARGS tests/conformance/attention
  LABELS conformance)
