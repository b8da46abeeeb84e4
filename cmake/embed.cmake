# Builds files into the command as text: cmake -DOUT=FILE.cc -DFILES="NAME=PATH;..." -P embed.cmake writes a
# source that has `extern const char* const NAME` in namespace sluice for each file.
set(text "// Made by cmake/embed.cmake.\nnamespace sluice {\n")
foreach(entry ${FILES})
  string(REGEX MATCH "^([^=]+)=(.+)$" whole ${entry})
  file(READ ${CMAKE_MATCH_2} content)
  string(APPEND text "extern const char* const ${CMAKE_MATCH_1};\n"
         "const char* const ${CMAKE_MATCH_1} = R\"sluice(${content})sluice\";\n")
endforeach()
file(WRITE ${OUT} "${text}}  // namespace sluice\n")
