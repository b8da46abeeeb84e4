# Under a sanitizer, the sources of each of these rooms are compiled as one, which takes half the time. In the
# other rooms, sources have names of their own that others have, too. All other builds compile each source by
# itself, so an include that is missing does not go unseen.
if(SLUICE_ASAN OR SLUICE_TSAN)
  foreach(room
      engine/plan/assemble engine/plan/lower engine/plan/search engine/plan/stage engine/program
      engine/simulate engine/run/checkpoint engine/run/execute engine/run/generate engine/run/start
      engine/run/train models/files models/text/records models/text/samples tools/command tools/generate
      tools/prepare tools/report tools/train)
    file(GLOB sources ${CMAKE_SOURCE_DIR}/${room}/*.cc)
    string(REPLACE "/" "_" group ${room})
    set_source_files_properties(${sources} TARGET_DIRECTORY sluice_engine sluice_tools_common
                                PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(sluice_engine sluice_run sluice_models sluice_tools_common
                        PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endif()
