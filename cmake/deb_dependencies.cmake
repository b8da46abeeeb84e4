# Runs in CPack once the files of the Debian package lie in its folder: dpkg-shlibdeps says which packages have
# the shared libraries. What only libsluice_mpi.so needs is recommended: without a launcher, it is never opened.
find_program(shlibdeps dpkg-shlibdeps)
if(NOT shlibdeps)
  message(FATAL_ERROR "dpkg-shlibdeps is not installed. Add it with:\n"
                      "  apt-get install --no-install-recommends dpkg-dev")
endif()
set(root ${CPACK_TEMPORARY_DIRECTORY}${CPACK_PACKAGING_INSTALL_PREFIX})
set(work ${CPACK_TOPLEVEL_DIRECTORY}/shlibdeps)
file(WRITE ${work}/debian/control "")  # it reads one, and takes nothing from it
execute_process(
  COMMAND ${shlibdeps} -O -dDepends -e${root}/bin/sluice -dRecommends -e${root}/lib/sluice/libsluice_mpi.so
  WORKING_DIRECTORY ${work} OUTPUT_VARIABLE found ERROR_VARIABLE why RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "dpkg-shlibdeps failed: ${why}")
endif()
foreach(kind Depends Recommends)
  if(NOT found MATCHES "shlibs:${kind}=([^\n]+)")
    message(FATAL_ERROR "dpkg-shlibdeps names no packages under ${kind}: ${found}")
  endif()
  string(TOUPPER ${kind} upper)
  set(CPACK_DEBIAN_PACKAGE_${upper} ${CMAKE_MATCH_1})
endforeach()
string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libonig5")  # opened at run time
string(PREPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, ")
