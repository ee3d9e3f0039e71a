# lgpu_library(NAME SOURCES ... [DEPENDS ...]): a static library of one layer. The repository root
# is on the include path, so that an include names the folder that a header lives in.
function(lgpu_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS} PRIVATE lgpu_options ${arg_PRIVATE_DEPENDS})
  list(LENGTH arg_SOURCES files)
  if(files GREATER 4)  # what it saves for fewer is less than it takes
    lgpu_precompile(${name})
  endif()
endfunction()

# lgpu_precompile(NAME): where LGPU_PRECOMPILE is on, the compiler reads once for the whole library what most files include of
# the standard library and abseil: most of the work of a build with sanitizers. The other presets find a missing include.
function(lgpu_precompile name)
  if(LGPU_PRECOMPILE)
    foreach(header algorithm array atomic chrono cstdint deque functional map memory mutex optional set span string string_view
                   thread utility vector absl/status/statusor.h absl/strings/str_cat.h)
      target_precompile_headers(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
    endforeach()
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      # Otherwise a compiled header from ccache is refused, since the headers in it are newer.
      target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
    endif()
  endif()
endfunction()

# lgpu_in_groups(NAME): where LGPU_UNITY is on, the compiler gets 8 files of the library or program at a time, so that it reads
# large headers once for all of them. The preset debug compiles each file by itself, and so finds a missing include.
function(lgpu_in_groups name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${LGPU_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(LGPU_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A member's type in the anonymous namespace of a .cc file: g++ takes the file for a header here.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# lgpu_alone(FILE ...): in no group, because other files have the same names in their anonymous namespaces, or tests link another
# file in its place.
function(lgpu_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# lgpu_test_program(NAME MAIN): a GoogleTest program; MAIN is the library with its main function. Its files find GoogleTest
# and the standard library compiled in advance, and are not optimised, which halves their time to compile, but in folders that
# set LGPU_TESTS_COMPUTE, whose tests compute for long.
function(lgpu_test_program name main)
  add_executable(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE lgpu_options lgpu_test_options GTest::gmock ${main})
  lgpu_in_groups(${name})
  if(LGPU_TESTS_COMPUTE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1> ${LGPU_COMPUTES})
    target_precompile_headers(${name} REUSE_FROM lgpu_test_main)
  else()
    target_compile_options(${name} PRIVATE -O0)
    target_precompile_headers(${name} REUSE_FROM lgpu_test_main_unoptimised)
  endif()
endfunction()

# lgpu_test(NAME SOURCES ... DEPENDS ... [PROGRAM program] [LABELS ...] [TIMEOUT seconds]): GoogleTest files that ctest runs
# as one test. With PROGRAM they are linked into one program with those of the folder's other tests that name it, which
# spares the linker most of its work; each test still runs in a process of its own, those with the longest TIMEOUT first. Tests with the label `concurrent` are in
# program_concurrent: ThreadSanitizer's gate builds these alone (the target lgpu_concurrent_tests) and runs them.
function(lgpu_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;PROGRAM" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(LGPU_SANITIZE)  # some tests take ten times as long there
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  if(arg_PROGRAM)
    set(program ${arg_PROGRAM})
    if("concurrent" IN_LIST arg_LABELS)
      string(APPEND program _concurrent)
    endif()
    if(NOT TARGET ${program})
      lgpu_test_program(${program} lgpu_test_main)
    endif()
    set(files ${arg_SOURCES})
    list(FILTER files INCLUDE REGEX "_test[.]cc$")
    list(JOIN files "," files)
    add_test(NAME ${name} COMMAND ${program} --files=${files})
  else()
    set(program ${name})
    lgpu_test_program(${program} GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${program})
  endif()
  if("concurrent" IN_LIST arg_LABELS)
    add_dependencies(lgpu_concurrent_tests ${program})
  endif()
  target_sources(${program} PRIVATE ${arg_SOURCES})
  target_link_libraries(${program} PRIVATE ${arg_DEPENDS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" COST ${arg_TIMEOUT})
endfunction()

# lgpu_bench(NAME SOURCES ... DEPENDS ...): a Google Benchmark program. ctest does not run it.
function(lgpu_bench name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE lgpu_options ${arg_DEPENDS} benchmark::benchmark)
endfunction()
