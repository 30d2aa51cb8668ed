# Libraries from the package manager, each as an imported target quire::NAME.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv>=1.44)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)

add_library(quire::uv ALIAS PkgConfig::UV)
add_library(quire::cjson ALIAS PkgConfig::CJSON)
add_library(quire::pcre2 ALIAS PkgConfig::PCRE2)
add_library(quire::utf8proc ALIAS PkgConfig::UTF8PROC)
add_library(quire::xxhash ALIAS PkgConfig::XXHASH)
if(CMOCKA_FOUND)
  add_library(quire::cmocka ALIAS PkgConfig::CMOCKA)
endif()

# llhttp: the system's library from 9.2 on.  Older distributions ship its C
# sources inside node-llhttp; tests/run and deploy/run unpack that package to
# build/deps where it is not installed.  Strict mode there: without it llhttp
# 8.1.0 accepts three request-smuggling inputs.
pkg_check_modules(LLHTTP IMPORTED_TARGET libllhttp>=9.2)
if(LLHTTP_FOUND)
  add_library(quire::llhttp ALIAS PkgConfig::LLHTTP)
else()
  find_path(LLHTTP_SOURCES llhttp.c REQUIRED PATHS
    ${CMAKE_SOURCE_DIR}/build/deps/node-llhttp/usr/share/llhttp /usr/share/llhttp
    NO_DEFAULT_PATH)
  find_path(LLHTTP_HEADERS llhttp.h REQUIRED PATHS
    ${LLHTTP_SOURCES}/../include/llhttp /usr/share/include/llhttp NO_DEFAULT_PATH)
  add_library(llhttp_packaged STATIC
    ${LLHTTP_SOURCES}/llhttp.c ${LLHTTP_SOURCES}/api.c ${LLHTTP_SOURCES}/http.c)
  target_include_directories(llhttp_packaged SYSTEM PUBLIC ${LLHTTP_HEADERS})
  target_compile_definitions(llhttp_packaged PRIVATE LLHTTP_STRICT_MODE=1)
  add_library(quire::llhttp ALIAS llhttp_packaged)
endif()
