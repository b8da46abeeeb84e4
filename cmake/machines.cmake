# Writes the machine descriptions of engine/rates/machines as a list that engine/rates/built_in.cc includes: a
# row {"name", R"json(...)json"} for each file. CMake configures again if a file is changed, added or removed.
file(GLOB machine_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/rates/machines/*.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${machine_files})
set(machine_names ${machine_files})
list(TRANSFORM machine_names REPLACE ".*/(.*)\\.json$" "\\1")
list(SORT machine_names)  # by name without the extension, since one name may begin another
set(machine_rows "")
foreach(name ${machine_names})
  file(READ ${CMAKE_SOURCE_DIR}/engine/rates/machines/${name}.json text)
  string(APPEND machine_rows "{\"${name}\", R\"json(${text})json\"},\n")
endforeach()
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/generated/engine/rates/built_in.inc CONTENT "${machine_rows}")
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/rates/built_in.cc PROPERTIES
                            INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
