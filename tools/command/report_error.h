// How a failure reaches the user: one sentence of what is wrong, one of what to do, and the exit code.
#pragma once

#include <exception>

#include "engine/base/error.h"

namespace sluice {

// Exceptions of libraries become an Error with a sentence and a remedy.
Error as_error(const std::exception& error);

// Flushes stdout, prints the error to stderr and returns the code that the process is to end with. An Error
// without a sentence is not printed: another process has printed it. Any thread.
int report_error(const std::exception& error);

}  // namespace sluice
