// What shows a text: a terminal of some width, or a file; with any characters, or with those of ASCII. Sluice
// prints no escape codes and no colours, so nothing more is to be known of a terminal. Callers: whatever
// prints for people. Facts for other software (--json, --text) are printed as they are.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "engine/run/start/say.h"

namespace sluice {

struct Screen {
  bool is_terminal = false;  // that a person looks at: not under a launcher
  size_t columns = 80;       // of a terminal
  bool is_utf8 = true;       // else only ASCII is shown
};

Screen screen_of(std::FILE* file);  // reads LC_ALL, LC_CTYPE, LANG and launchers' variables

// Whether a locale of that name has UTF-8: "de_DE.UTF-8" and "C.utf8" have, "C" and "" have not.
bool is_utf8_locale(const std::string& name);

// The text as the screen can show it: on a terminal, lines that are too long are broken at blanks; without
// UTF-8, "µs" is "us".
std::string shown(const std::string& text, const Screen& screen);

// Writes the text as shown on its screen, and flushes. Writes are not checked.
void show(std::FILE* out, const std::string& text);
Say say_to(std::FILE* out);

}  // namespace sluice
