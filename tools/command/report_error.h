// How a failure reaches the user: one sentence of what is wrong, one of what to do, and the exit code.
#pragma once

#include <exception>

#include "engine/base/error.h"

namespace sluice {

// What is thrown by libraries is put into words.
Error as_error(const std::exception& error);

// Prints it to stderr, what stdout still holds before it, and returns the code that the process is to end
// with. An Error without a sentence was told by another process. Any thread.
int report_error(const std::exception& error);

}  // namespace sluice
