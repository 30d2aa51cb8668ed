# The CPU backend's matrix products beside oneDNN's, where that is installed.
# (Its CMake package stops the configuration where OpenCL's headers are absent.)
find_library(DNNL_LIBRARY dnnl)
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.h)
if(DNNL_LIBRARY AND DNNL_INCLUDE)
  quire_test(linear_bench NO_RUN SOURCES bench/linear_bench.c LIBRARIES model_cpu_inside ${DNNL_LIBRARY})
  target_include_directories(linear_bench SYSTEM PRIVATE ${DNNL_INCLUDE})
endif()
