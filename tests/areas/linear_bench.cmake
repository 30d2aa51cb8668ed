# The CPU backend's matrix products beside oneDNN's, where that is installed.
find_package(dnnl QUIET CONFIG)
if(dnnl_FOUND)
  quire_test(linear_bench NO_RUN SOURCES bench/linear_bench.c LIBRARIES model DNNL::dnnl)
endif()
