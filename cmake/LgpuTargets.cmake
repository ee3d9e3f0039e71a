# lgpu_library(NAME SOURCES ... [DEPENDS ...]): a static library of one layer. The repository root
# is on the include path, so that an include names the folder that a header lives in.
function(lgpu_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS} PRIVATE lgpu_options ${arg_PRIVATE_DEPENDS})
endfunction()

# lgpu_in_groups(NAME): in builds to be used (LGPU_UNITY) the compiler gets 8 files of the library at a time, so that it reads
# large headers once for all of them. The other builds compile each file by itself.
function(lgpu_in_groups name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${LGPU_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(LGPU_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A member's type in the anonymous namespace of a .cc file: g++ takes the file for a header here.
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# lgpu_test(NAME SOURCES ... DEPENDS ... [LABELS ...] [TIMEOUT seconds]): a GoogleTest program that
# ctest runs as one test.
function(lgpu_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(LGPU_SANITIZE)  # some tests take ten times as long there
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE lgpu_options ${arg_DEPENDS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()

# lgpu_bench(NAME SOURCES ... DEPENDS ...): a Google Benchmark program. ctest does not run it.
function(lgpu_bench name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE lgpu_options ${arg_DEPENDS} benchmark::benchmark)
endfunction()
