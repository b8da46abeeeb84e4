// What keeps a process from io_uring, for the back end and for tests of what is said about it.
#pragma once

#include "offload/io/backends.h"

namespace sluice {

// What `error` of io_uring_setup means where kernel.io_uring_disabled has this value (0: for all, 1: a group,
// 2: nobody may; -1: there is no such setting). No error is no obstacle.
IoStatus explain_uring_error(int error, int disabled_setting);

}  // namespace sluice
