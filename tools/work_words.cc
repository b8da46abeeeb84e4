#include "tools/work_words.h"

#include <fmt/format.h>

namespace sluice {

std::string work_words(const Machine& machine, const Work& work) {
  const std::string what = work.task
                               ? task_kind_name(*work.task)
                               : fmt::format("{} {} -> {}", buffer_class_name(work.moved),
                                             machine.tiers[work.from].name, machine.tiers[work.to].name);
  return work.executed ? what : "start of " + what;
}

}  // namespace sluice
