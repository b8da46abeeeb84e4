// Why a process cannot use io_uring, in words: for the back end, and for tests of these words.
#pragma once

#include "offload/io/backends.h"

namespace sluice {

// What `error` of io_uring_setup means, given kernel.io_uring_disabled (0: all may use it, 1: a group may, 2:
// nobody may; -1: there is no such setting). Without an error there is no obstacle.
IoStatus explain_uring_error(int error, int disabled_setting);

}  // namespace sluice
