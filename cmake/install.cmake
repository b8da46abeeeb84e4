# What `cmake --install BUILD` installs. Everything that is packed has these folders:
#   bin/sluice    the command
#   lib/sluice/   libsluice_mpi.so and, in packages that carry them, shared libraries (carry_libraries.cmake)
#   share/        the manual page, completions, documents
include(GNUInstallDirs)

set(component COMPONENT sluice)
set(share ${CMAKE_BINARY_DIR}/share)  # written by the command: tools/CMakeLists.txt
set(data ${CMAKE_INSTALL_DATADIR})
install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${component})
set_target_properties(sluice_mpi PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS sluice_mpi LIBRARY DESTINATION lib/sluice ${component})
install(FILES ${share}/sluice.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 ${component})
install(FILES ${share}/sluice DESTINATION ${data}/bash-completion/completions ${component})
foreach(folder site-functions vendor-completions)  # zsh searches the latter below /usr on Debian
  install(FILES ${share}/_sluice DESTINATION ${data}/zsh/${folder} ${component})
endforeach()
install(FILES ${share}/sluice.fish DESTINATION ${data}/fish/vendor_completions.d ${component})
install(FILES LICENSE README.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR} ${component})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} ${component})
