# The bundle: one archive that runs in any directory, on any x86-64 Linux with the glibc and libstdc++ that
# docs/install.md names. `cmake --build build/release --target bundle` makes it (tools/bundle.sh).
#   bin/           the command, tests and benchmarks, except those that are linked with the emulation of CUDA
#   lib/sluice/    the shared libraries that they need (carry_libraries.cmake)
#   tests/, docs/, tools/, LICENSE, README.md, CONTRIBUTING.md, run_tests.sh with its list tests.list, and a
#   file named commit
set(bundle_executables "")
foreach(folder tools tests)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    # structure_test and words_test read the sources, which the bundle leaves out.
    if(type STREQUAL "EXECUTABLE" AND NOT target MATCHES "^(structure|words)_test$")
      list(APPEND bundle_executables ${target})
    endif()
  endforeach()
endforeach()

set(bundle COMPONENT bundle EXCLUDE_FROM_ALL)
install(TARGETS ${bundle_executables} RUNTIME DESTINATION bin ${bundle})
install(DIRECTORY tests/fixtures tests/golden DESTINATION tests ${bundle})
install(DIRECTORY tests/fuzz/corpus DESTINATION tests/fuzz ${bundle})
install(DIRECTORY docs DESTINATION . ${bundle})
install(DIRECTORY tools/benchmarks DESTINATION tools ${bundle} FILES_MATCHING PATTERN "*.py"
        PATTERN gpu EXCLUDE)
install(PROGRAMS tools/run_tests.sh DESTINATION . ${bundle})
install(PROGRAMS tools/gpu_check.sh DESTINATION tools ${bundle})
install(FILES LICENSE README.md CONTRIBUTING.md DESTINATION . ${bundle})

list(TRANSFORM bundle_executables REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE files)
install(CODE "set(executables \"${files}\")
  set(opened_libraries \"${opened_libraries}\")
  set(binary_dir \"${CMAKE_BINARY_DIR}\")
  set(source_dir \"${CMAKE_SOURCE_DIR}\")
  set(ctest \"${CMAKE_CTEST_COMMAND}\")
  set(python \"${PYTHON3}\")" ${bundle})
install(SCRIPT cmake/carry_libraries.cmake ${bundle})
install(SCRIPT cmake/bundle_install.cmake ${bundle})

add_custom_target(bundle COMMAND ${CMAKE_SOURCE_DIR}/tools/bundle.sh ${CMAKE_BINARY_DIR} VERBATIM)
add_dependencies(bundle ${bundle_executables})

if(NOT SLUICE_ASAN AND NOT SLUICE_TSAN)  # these build only some of the files that are packed
  add_test(NAME tools/bundle_test COMMAND ${CMAKE_SOURCE_DIR}/tests/tools/bundle_test.sh ${CMAKE_BINARY_DIR}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(tools/bundle_test PROPERTIES LABELS slow)
endif()
