# What every target of the project is built with, and the three ways to declare one.
add_library(bt_flags INTERFACE)
target_include_directories(bt_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
# -ffp-contract=off: the order of sums is part of an operation (DESIGN 7); only written fmaf() contract.
target_compile_options(bt_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    -Wstrict-prototypes -Wmissing-prototypes -Wvla -ffp-contract=off -fno-math-errno $<$<BOOL:${BT_WERROR}>:-Werror>>)
# (nvcc's own warnings, its host compiler's and the assembler's)
target_compile_options(bt_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${BT_WERROR}>>:--Werror=all-warnings
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Werror -Xptxas=--warning-as-error>)
target_compile_definitions(bt_flags INTERFACE _GNU_SOURCE)
if(BT_SANITIZE)
    target_compile_options(bt_flags INTERFACE -fsanitize=${BT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
    target_link_options(bt_flags INTERFACE -fsanitize=${BT_SANITIZE})
    if(BT_SANITIZE MATCHES "thread" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        target_compile_options(bt_flags INTERFACE -Wno-tsan) # fences between processes, which TSan cannot follow
    endif()
endif()
if(BT_FUZZ)
    # Every module counts its edges, or a fuzzer sees nothing of what its target calls.
    target_compile_options(bt_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
find_package(Threads REQUIRED)
target_link_libraries(bt_flags INTERFACE Threads::Threads m)

# bt_module(kv SOURCES pool.c table.c DEPS base): the static library bt_kv.
function(bt_module name)
    cmake_parse_arguments(M "" "" "SOURCES;DEPS;LIBS" ${ARGN})
    add_library(bt_${name} STATIC ${M_SOURCES})
    list(TRANSFORM M_DEPS PREPEND bt_)
    target_link_libraries(bt_${name} PUBLIC bt_flags ${M_DEPS} PRIVATE ${M_LIBS})
endfunction()

# A target that builds its members.
function(bt_collect target member)
    if(NOT TARGET ${target})
        add_custom_target(${target})
    endif()
    add_dependencies(${target} ${member})
endfunction()

# bt_test(test_pool SOURCES test_pool.c DEPS kv): a check program, run by ctest in the source root.
function(bt_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
    add_executable(${name} ${T_SOURCES})
    list(TRANSFORM T_DEPS PREPEND bt_)
    target_link_libraries(${name} PRIVATE bt_flags bt_test_support ${T_DEPS} ${T_LIBS} PkgConfig::check)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 300)
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}" SKIP_RETURN_CODE 77)
    foreach(label ${T_LABELS}) # so that one label's programs can be built alone
        bt_collect(tests_${label} ${name})
    endforeach()
endfunction()

# bt_fuzz(fuzz_gguf SOURCES fuzz_gguf.c DEPS model): a libFuzzer program (clang), or a corpus replayer elsewhere.
function(bt_fuzz name)
    cmake_parse_arguments(F "" "" "SOURCES;DEPS;LIBS" ${ARGN})
    list(TRANSFORM F_DEPS PREPEND bt_)
    add_executable(${name} ${F_SOURCES})
    if(BT_FUZZ)
        target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    else()
        target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
    endif()
    target_link_libraries(${name} PRIVATE bt_flags ${F_DEPS} ${F_LIBS})
    bt_collect(fuzzers ${name})
endfunction()

# A folder that has no CMakeLists.txt yet is left out.
function(bt_subdirectory folder)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt)
        add_subdirectory(${folder})
    endif()
endfunction()
