# The cuda device has three libraries with one interface, gpu/cuda/device.h and the headers beside it:
#   sluice_cuda           runs on GPUs: built if the CUDA Toolkit is found, for the compute capabilities that it
#                         knows and, as PTX, for later ones
#   sluice_cuda_absent    reports that this build has no cuda device; still makes plans for it
#   sluice_cuda_emulated  for tests, over an emulation of CUDA in plain C++ (tests/emulation)
# Libraries that use the interface link none of them; each target with a `main` chooses one.
# ${sluice_cuda_best} is sluice_cuda if it is built, else sluice_cuda_absent.
set(SLUICE_CUDA AUTO CACHE STRING
    "the cuda device: AUTO (where the CUDA Toolkit is found), HERE (the same, where a GPU is too), ON or OFF")
set(SLUICE_CUDA_ARCHITECTURES "all" CACHE STRING
    "as CMAKE_CUDA_ARCHITECTURES, or all; or few, which run on all and are built sooner")

# Object libraries, since an archive would have to follow every library that uses it on the linker's command
# line.
add_library(sluice_cuda_absent OBJECT gpu/cuda/absent.cc gpu/cuda/nvml.cc gpu/cuda/nvml_library.cc
            gpu/cuda/nccl.cc gpu/cuda/nccl_library.cc gpu/cuda/workspace.cc)
target_link_libraries(sluice_cuda_absent PUBLIC sluice_gpu)
set(sluice_cuda_best sluice_cuda_absent)
set(SLUICE_CUDA_BUILT OFF)
if(SLUICE_CUDA STREQUAL "HERE")
  if(EXISTS /dev/nvidiactl OR EXISTS /dev/dxg)  # the latter: WSL
    set(SLUICE_CUDA AUTO)
  else()
    set(SLUICE_CUDA OFF)
    message(STATUS "no NVIDIA GPU here, so the cuda device is not built; tools/build.sh release has it")
  endif()
endif()
if(SLUICE_CUDA STREQUAL "AUTO" OR SLUICE_CUDA)
  include(CheckLanguage)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_NVCC_EXECUTABLE AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})  # nvcc need not be on PATH
  endif()
  check_language(CUDA)
  find_path(SLUICE_NVTX nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.4
     AND SLUICE_NVTX)
    set(SLUICE_CUDA_BUILT ON)
  elseif(NOT SLUICE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SLUICE_CUDA is ${SLUICE_CUDA}, but there is no CUDA Toolkit of version 12.4 or later.")
  else()
    message(STATUS "no CUDA Toolkit of version 12.4 or later, so the cuda device is not built. With NVIDIA's "
      "repository set up, add it with:\n  apt-get install --no-install-recommends cuda-nvcc-13-0 "
      "cuda-cudart-dev-13-0 cuda-nvtx-13-0 libcublas-dev-13-0\n  and configure a fresh build folder.")
  endif()
endif()
set(SLUICE_CUDA_BUILT ${SLUICE_CUDA_BUILT} CACHE INTERNAL "read by tools/test.sh")

if(SLUICE_CUDA_BUILT)
  if(SLUICE_CUDA_ARCHITECTURES STREQUAL "few")
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90)
  elseif(NOT SLUICE_CUDA_ARCHITECTURES STREQUAL "all")
    set(CMAKE_CUDA_ARCHITECTURES ${SLUICE_CUDA_ARCHITECTURES})
  else()
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real)
    if(CUDAToolkit_VERSION VERSION_LESS 13.0)
      list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)  # gpu/cuda/status.cc
    endif()
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 90-real 100 120)  # 11.0 takes the PTX of 10.0
    else()
      list(APPEND CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  enable_language(CUDA)
  # CMake before 3.26 does not know that nvcc has C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  message(STATUS "found the CUDA Toolkit ${CUDAToolkit_VERSION}; kernels for ${CMAKE_CUDA_ARCHITECTURES}")
  file(GLOB sources CONFIGURE_DEPENDS gpu/cuda/*.cu gpu/cuda/*.cc)
  list(FILTER sources EXCLUDE REGEX "/cuda/absent\\.cc$")
  add_library(sluice_cuda OBJECT ${sources})
  set(host_warnings -Wall,-Wextra,-Wno-missing-field-initializers)  # nvcc's output fails -Wpedantic
  # With nvcc 13.0, the compiler of CI, kernels spill no registers. Other versions may spill a few.
  if(CUDAToolkit_VERSION MATCHES "^13\\.0\\.")
    set(spills -Xptxas=-warn-spills)
  endif()
  target_compile_options(sluice_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;${spills};-Xcompiler=${host_warnings}>")
  # tests/emulation/attention_cut_test.cc reads in these how many registers ptxas used.
  set_source_files_properties(gpu/cuda/attention_forward.cu gpu/cuda/attention_backward.cu
                              PROPERTIES COMPILE_OPTIONS --no-compress)
  target_link_libraries(sluice_cuda PUBLIC sluice_gpu CUDA::cudart_static)
  target_link_options(sluice_cuda INTERFACE LINKER:-rpath,${CUDAToolkit_LIBRARY_DIR})  # for gpu/cuda/cublaslt.cc
  set(sluice_cuda_best sluice_cuda)
endif()
