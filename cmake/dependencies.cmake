# Every library from elsewhere: finds it, names its Debian package and purpose, and says at the end which of
# ours link it. tools/setup.sh reads "PACKAGE: PURPOSE" from the lines that begin with require_, and installs
# these packages. CUDA is in cuda.cmake.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
set(missing "")

macro(report_library name target package)
  if(TARGET ${target})
    message(STATUS "found ${name}")
  else()
    string(REGEX REPLACE ":.*" "" debian "${package}")
    list(APPEND missing ${debian})
  endif()
endmacro()
macro(require_package name target package)
  find_package(${name} QUIET ${ARGN})
  report_library("${name}" ${target} "${package}")
endmacro()
macro(require_module name module package)
  pkg_check_modules(${name} QUIET IMPORTED_TARGET ${module})
  report_library("${module} ${${name}_VERSION}" PkgConfig::${name} "${package}")
endmacro()
# For libraries that neither CMake nor pkg-config can find: target NAME::NAME.
macro(require_library name header package)
  find_library(${name}_LIBRARY ${name})
  find_path(${name}_INCLUDE ${header})
  if(${name}_LIBRARY AND ${name}_INCLUDE)
    add_library(${name}::${name} UNKNOWN IMPORTED)
    set_target_properties(${name}::${name} PROPERTIES IMPORTED_LOCATION "${${name}_LIBRARY}"
                          INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE}")
  endif()
  report_library("${name}" ${name}::${name} "${package}")
endmacro()

require_package(TBB TBB::tbb "libtbb-dev: threads")
require_module(openblas openblas "libopenblas-pthread-dev: fp32 matrix products")
# oneDNN's CMake configuration demands the development files of OpenCL, which are not needed here.
require_library(dnnl oneapi/dnnl/dnnl.hpp "libdnnl-dev: bf16 matrix products")
require_package(hwy hwy::hwy "libhwy-dev: vector code with run-time dispatch")
require_module(hwloc hwloc "libhwloc-dev: memory placement")
require_module(liburing liburing "liburing-dev: file I/O")
require_module(xxhash libxxhash "libxxhash-dev: checksums")
require_module(utf8proc libutf8proc "libutf8proc-dev: normal forms of Unicode")
# Opened at run time (models/text/tokenizer/pattern.cc says why), so only its headers are used here.
require_library(onig oniguruma.h "libonig-dev: regular expressions of tokenizers")
get_filename_component(opened_libraries "${onig_LIBRARY}" DIRECTORY)
string(APPEND opened_libraries /libonig.so.5)  # packages carry it; nothing is linked with it
require_package(fmt fmt::fmt "libfmt-dev: text formatting")
require_package(nlohmann_json nlohmann_json::nlohmann_json "nlohmann-json3-dev: JSON")
require_package(CLI11 CLI11::CLI11 "libcli11-dev: command line")
require_package(GTest GTest::gtest "libgtest-dev: tests")
require_package(Boost Boost::context "libboost-context-dev: GPU threads of the tests' emulation"
                COMPONENTS context)
require_package(benchmark benchmark::benchmark "libbenchmark-dev: benchmarks")
set(MPI_CXX_SKIP_MPICXX ON)
require_package(MPI MPI::MPI_CXX "libopenmpi-dev: ranks of several processes")
if(missing)
  list(JOIN missing " " packages)
  message(FATAL_ERROR "Some libraries are missing. Add them with:\n"
                      "  apt-get install --no-install-recommends ${packages}")
endif()

set(engine_links Threads::Threads fmt::fmt nlohmann_json::nlohmann_json hwy::hwy ${CMAKE_DL_LIBS})
set(models_links PkgConfig::xxhash PkgConfig::utf8proc)
set(offload_links PkgConfig::liburing PkgConfig::hwloc PkgConfig::xxhash)
set(gpu_links PkgConfig::openblas)
if(NOT SLUICE_TSAN)  # the thread sanitizer knows neither oneTBB nor gomp, which sets oneDNN's thread count
  list(APPEND engine_links TBB::tbb)
  list(APPEND gpu_links dnnl::dnnl gomp)
endif()
