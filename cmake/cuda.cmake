# The cuda device: built when the CUDA Toolkit is found, for the compute capabilities that the toolkit knows
# and, as PTX, for later ones. Without it gpu/cuda_absent.cc stands in and everything else builds.
option(SLUICE_CUDA "build the cuda device's ops, which nothing but tests uses yet, and their emulation" OFF)
set(SLUICE_CUDA_ARCHITECTURES "all" CACHE STRING "as CMAKE_CUDA_ARCHITECTURES, or all")

set(SLUICE_CUDA_BUILT OFF)
if(NOT SLUICE_CUDA)
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
find_package(CUDAToolkit QUIET)
if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.4)
  set(SLUICE_CUDA_BUILT ON)
endif()

if(SLUICE_CUDA_BUILT)
  # 7.5 is the first with the matrix instructions that attention uses.
  if(NOT SLUICE_CUDA_ARCHITECTURES STREQUAL "all")
    set(CMAKE_CUDA_ARCHITECTURES ${SLUICE_CUDA_ARCHITECTURES})
  elseif(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
  endif()
  enable_language(CUDA)
  # CMake before 3.26 does not know that nvcc has C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  message(STATUS "found the CUDA Toolkit ${CUDAToolkit_VERSION}; kernels for ${CMAKE_CUDA_ARCHITECTURES}")
  file(GLOB sources CONFIGURE_DEPENDS gpu/cuda_*.cu gpu/cuda_*.cc)
  list(FILTER sources EXCLUDE REGEX "/cuda_absent\\.cc$")
else()
  message(STATUS "no CUDA Toolkit of version 12.4 or later, so the cuda device is not built. With NVIDIA's "
    "repository set up, add it with:\n  apt-get install --no-install-recommends cuda-nvcc-13-0 "
    "cuda-cudart-dev-13-0 libcublas-dev-13-0\n  and configure again with nvcc on PATH.")
  set(sources gpu/cuda_absent.cc)
endif()

add_library(sluice_cuda STATIC ${sources})
target_link_libraries(sluice_cuda PUBLIC sluice_gpu)
if(SLUICE_CUDA_BUILT)
  set(host_warnings -Wall,-Wextra,-Wno-missing-field-initializers)  # nvcc's own output is not pedantic
  target_compile_options(sluice_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xptxas=-warn-spills;-Xcompiler=${host_warnings}>")
  target_link_libraries(sluice_cuda PUBLIC CUDA::cudart_static CUDA::cublasLt)
endif()
