# Runs when a tree is installed that brings its shared libraries: copies those that `executables` need, and
# `opened_libraries`, which they open, into lib/sluice, and what their Debian packages say of their licences into
# lib/sluice/licenses.
set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/sluice")

# libstdc++ and libgcc_s are the system's, as glibc is: Debian 12's builds of them need glibc 2.36, and those of
# the system may not be older than what other libraries of the process need.
set(of_system "^(ld-linux.*|lib(c|m|mvec|dl|pthread|rt|resolv|util|anl|stdc[+][+]|gcc_s))[.]so")
set(of_cuda "^lib(cuda|cudart|cublas|cublasLt|nccl|nvidia-ml|nvrtc|nvJitLink|nvToolsExt)[.]so")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${executables} RESOLVED_DEPENDENCIES_VAR found
     UNRESOLVED_DEPENDENCIES_VAR missing PRE_EXCLUDE_REGEXES ${of_system} ${of_cuda})
if(missing)
  message(FATAL_ERROR "The package needs libraries that are not found: ${missing}")
endif()
file(MAKE_DIRECTORY ${root}/licenses)
foreach(library ${found} ${opened_libraries})
  # Copied as a file under the name by which others ask for it: distributions have chains of links between
  # that name and the file.
  get_filename_component(name ${library} NAME)
  get_filename_component(file ${library} REALPATH)
  file(COPY_FILE ${file} ${root}/${name})
  get_filename_component(file_name ${file} NAME)
  execute_process(COMMAND dpkg-query --search "*/${file_name}" OUTPUT_VARIABLE owner
                  RESULT_VARIABLE code ERROR_QUIET)
  string(REGEX MATCH "^[^:,]+" package "${owner}")
  if(code EQUAL 0 AND EXISTS /usr/share/doc/${package}/copyright)
    file(COPY_FILE /usr/share/doc/${package}/copyright ${root}/licenses/${package})
  else()
    message(WARNING "No Debian package says under which licence ${name} is.")
  endif()
endforeach()
