# sluice_unite(TARGET): the sources of each folder become one unit, which reads headers and makes templates
# once. So two sources of a folder must not define the same name, not even in unnamed namespaces. It is for
# builds that are made as a whole: the check, and those of the sanitizers. Left alone are folders whose
# sources have the same parts by the same names, such as families, and sources that are compiled once for each
# vector target.
function(sluice_unite target)
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes a source that another one includes for a header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  list(FILTER sources INCLUDE REGEX "^/.*\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/(families|completion|bench|simd)/")
  list(FILTER sources EXCLUDE REGEX "/tests/(emulation|engine/(graph|plan/search|run/train)|models/(weights|text/tokenizer))/")
  foreach(source ${sources})
    get_filename_component(folder ${source} DIRECTORY)
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER ${folder} group)
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
