// Names of what instructions do, for people. Any thread.
#pragma once

#include <string>

#include "engine/attribute.h"

namespace sluice {

// "backward", "state nvme -> host"; "start of backward" for what was not executed. Subjects are left out.
std::string work_words(const Machine& machine, const Work& work);

}  // namespace sluice
