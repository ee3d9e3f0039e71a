# The compiler settings that every lgpu target shares, as one interface target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Debian's protobuf and gRPC are shared libraries; lgpu exports only what LGPU_API marks.
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

set(LGPU_UNITY_DEFAULT OFF)
if(CMAKE_BUILD_TYPE MATCHES "^Rel")
  set(LGPU_UNITY_DEFAULT ON)
endif()
option(LGPU_UNITY "Compile libraries and tests in groups of files, in two thirds of the time" ${LGPU_UNITY_DEFAULT})

option(LGPU_PRECOMPILE "Compile the headers of other libraries once for each library of lgpu" OFF)

# -O3 is for the kernels only (kernels/CMakeLists.txt): elsewhere it brings nothing, and g++ 12 warns falsely
# of overlapping copies and array bounds inside its own library (GCC bugs 105651 and 107852).
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(LGPU_CCACHE ccache)
if(LGPU_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # By relative paths, so that another build folder or checkout finds what this one has compiled. The sloppiness is what
  # ccache wants for precompiled headers; no file of lgpu's has __TIME__.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${LGPU_CCACHE})
endif()

add_library(lgpu_options INTERFACE)
target_compile_options(lgpu_options INTERFACE -Wall -Wextra -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
  -Wundef -Wcast-qual -Wformat=2)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(lgpu_options INTERFACE -Wthread-safety)
endif()
if(LGPU_WERROR)
  target_compile_options(lgpu_options INTERFACE -Werror)
endif()
# Of a build with sanitizers only what computes for long is optimised: the optimiser takes half of the time to compile.
set(LGPU_COMPUTES)
set(LGPU_GENERATED)  # of code by protoc beside such code
if(LGPU_SANITIZE)
  set(LGPU_COMPUTES -O1)
  set(LGPU_GENERATED -O0)
endif()
if(LGPU_SANITIZE)
  add_compile_options(-fsanitize=${LGPU_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LGPU_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND LGPU_SANITIZE MATCHES "address")
    # One runtime for a program and the libraries that it opens, as g++ has it.
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so
                    OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    get_filename_component(runtime ${runtime} DIRECTORY)
    add_link_options(-shared-libsan -Wl,-rpath,${runtime})
  endif()
  if(LGPU_SANITIZE MATCHES "undefined")
    # To look at an address this check makes a pipe, which fails where a test has used the descriptors up.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()

# Of libraries that stand for a driver: programs call them by other declarations of the same C functions, and with any number
# for an enum of the driver's.
add_library(lgpu_c_boundary INTERFACE)
if(LGPU_SANITIZE MATCHES "undefined")
  target_compile_options(lgpu_c_boundary INTERFACE
    -fno-sanitize=enum $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
endif()

# The memory of GPUs is served by any build: the driver is opened at run time. lgpu's kernels for them need the toolkit's
# compiler.
find_program(LGPU_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
find_program(LGPU_BIN2C bin2c HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
find_program(LGPU_PTXAS ptxas HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
get_filename_component(LGPU_CUDA_HINT "${LGPU_NVCC}/../../include" ABSOLUTE)
find_path(LGPU_CUDA_INCLUDE cudaTypedefs.h HINTS ${LGPU_CUDA_HINT} $ENV{CUDA_HOME}/include /usr/local/cuda/include)
find_path(LGPU_CUBLAS_LT_INCLUDE cublasLt.h HINTS ${LGPU_CUDA_INCLUDE})
set(LGPU_CUDA_DEFAULT OFF)
if(LGPU_CUDA_INCLUDE AND LGPU_CUBLAS_LT_INCLUDE AND LGPU_NVCC AND LGPU_BIN2C AND LGPU_PTXAS)
  set(LGPU_CUDA_DEFAULT ON)
endif()
option(LGPU_CUDA "Build the kernels for GPUs, which needs a CUDA toolkit" ${LGPU_CUDA_DEFAULT})
if(LGPU_CUDA AND NOT LGPU_CUDA_DEFAULT)
  message(FATAL_ERROR "LGPU_CUDA is on, and there is no CUDA toolkit (nvcc, ptxas, bin2c, cudaTypedefs.h, cublasLt.h); "
                      "set CUDA_HOME, or configure with -DLGPU_CUDA=OFF")
endif()
set(gpu_report "memory of GPUs: built; kernels for GPUs: ")
if(LGPU_CUDA)
  string(APPEND gpu_report "built, with ${LGPU_NVCC}")
else()
  string(APPEND gpu_report "NOT built (no CUDA toolkit was found, or LGPU_CUDA is off), so ops run on the CPU; for them: "
         "scripts/deps --cuda (Debian's section non-free), or NVIDIA's toolkit with CUDA_HOME set, then configure "
         "again with -DLGPU_CUDA=ON")
endif()
if(EXISTS /dev/nvidiactl OR EXISTS /proc/driver/nvidia/version OR EXISTS /dev/dxg)  # as in base/nvidia_driver.h
  string(APPEND gpu_report "; driver here: NVIDIA's")
else()
  string(APPEND gpu_report "; driver here: none, so lgpud needs simulated GPUs; for a real one: apt-get install "
         "nvidia-driver (Debian's sections non-free and non-free-firmware)")
endif()
message(STATUS "GPUs: ${gpu_report}")
