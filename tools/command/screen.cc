#include "tools/command/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tools/command/launchers.h"
#include "tools/command/wrap.h"

namespace sluice {
namespace {

// The name of the locale that classifies characters: the first of the variables that is not empty.
std::string locale_name() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* name = std::getenv(variable); name && *name != '\0') return name;
  return "";
}

std::string in_ascii(const std::string& text) {
  const std::string micro = "\u00b5";
  std::string out;
  for (size_t begin = 0, at = 0; at != std::string::npos; begin = at + micro.size()) {
    at = text.find(micro, begin);
    out += text.substr(begin, at - begin) + (at == std::string::npos ? "" : "u");
  }
  return out;
}

}  // namespace

Screen screen_of(std::FILE* file) {
  Screen screen;
  screen.is_terminal = ::isatty(::fileno(file)) == 1 && !is_launched();
  winsize size{};
  if (screen.is_terminal && ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    screen.columns = size.ws_col;
  screen.is_utf8 = is_utf8_locale(locale_name());
  return screen;
}

bool is_utf8_locale(const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return false;
  std::string codeset = name.substr(dot + 1, name.find('@') - dot - 1);
  std::transform(codeset.begin(), codeset.end(), codeset.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return codeset == "utf-8" || codeset == "utf8";
}

std::string shown(const std::string& text, const Screen& screen) {
  const std::string letters = screen.is_utf8 ? text : in_ascii(text);
  return screen.is_terminal ? fitted(letters, screen.columns) : letters;
}

void show(std::FILE* out, const std::string& text) {
  std::fputs(shown(text, screen_of(out)).c_str(), out);
  std::fflush(out);
}

Say say_to(std::FILE* out) {
  return [out](const std::string& lines) { show(out, lines); };
}

}  // namespace sluice
