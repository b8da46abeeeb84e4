# The packages. cmake/install.cmake says what is in them, docs/install.md which one is for whom.
#   cmake --build build/release --target deb      a Debian package, for the release of Debian that builds it
#   cmake --build build/release --target wheel    a wheel, with the shared libraries that the command needs
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluice-training)  # Debian has another package called sluice
set(CPACK_DEBIAN_PACKAGE_CONFLICTS sluice)
set(CPACK_PACKAGE_CONTACT "The Sluice project")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains language models that do not fit the memory of the machine")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Sluice keeps weights, gradients and optimizer state in GPU memory, in host
memory and in files on NVMe drives, within a budget of bytes for each. It
plans a whole training step before it starts, and says whether it fits and
how long it takes. It runs on an NVIDIA GPU, on the processor alone, or on
several of either.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
cmake_host_system_information(RESULT system QUERY DISTRIB_INFO)
set(CPACK_DEBIAN_PACKAGE_RELEASE "1~${system_ID}${system_VERSION_ID}")  # an upgrade of the system replaces it
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
file(WRITE ${CMAKE_BINARY_DIR}/share/copyright
     "Sluice is under the Apache License 2.0: see /usr/share/common-licenses/Apache-2.0.\n")
install(FILES ${CMAKE_BINARY_DIR}/share/copyright DESTINATION share/doc/${CPACK_PACKAGE_NAME}
        COMPONENT deb EXCLUDE_FROM_ALL)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};sluice;sluice;/;${CMAKE_BINARY_DIR};sluice;deb;/")
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/deb_dependencies.cmake)
include(CPack)
add_custom_target(deb COMMAND ${CMAKE_CPACK_COMMAND} --config ${CMAKE_BINARY_DIR}/CPackConfig.cmake
                  -B ${CMAKE_BINARY_DIR} DEPENDS sluice VERBATIM)

set(libraries COMPONENT libraries EXCLUDE_FROM_ALL)
install(CODE "set(executables \"$<TARGET_FILE:sluice>\")
  set(opened_libraries \"${opened_libraries}\")" ${libraries})
install(SCRIPT cmake/carry_libraries.cmake ${libraries})
add_custom_target(wheel COMMAND python3 -B ${CMAKE_SOURCE_DIR}/tools/wheel.py ${CMAKE_BINARY_DIR}
                  DEPENDS sluice VERBATIM)

if(NOT SLUICE_ASAN AND NOT SLUICE_TSAN)  # these build only some of the files that are packed
  add_test(NAME tools/packages_test
           COMMAND ${CMAKE_SOURCE_DIR}/tests/tools/packages_test.sh ${CMAKE_BINARY_DIR}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(tools/packages_test PROPERTIES LABELS mpi RESOURCE_LOCK mpi)
endif()
