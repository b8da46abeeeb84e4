// How a start tells the user something. Whoever starts a run prints the text, since only tools know where it
// is shown.
#pragma once

#include <functional>
#include <string>

namespace sluice {

// Gets whole printable lines, on the thread that calls the function to which it was given.
using Say = std::function<void(const std::string& lines)>;

}  // namespace sluice
