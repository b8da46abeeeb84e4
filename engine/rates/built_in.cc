// The built-in machine descriptions: engine/rates/machines/NAME.json, one row a file, in the order of their
// names (cmake/machines.cmake). docs/machine.md says where their figures come from.
#include "engine/rates/machine_rates.h"

namespace sluice {

namespace {

struct BuiltIn {
  const char *name, *json;
};
constexpr BuiltIn kBuiltIn[] = {
#include "engine/rates/built_in.inc"
};

}  // namespace

std::optional<MachineRates> built_in_machine(const std::string& name) {
  for (const BuiltIn& machine : kBuiltIn)
    if (name == machine.name) return parse_machine_rates(machine.json, machine.name);
  return std::nullopt;
}

std::vector<std::string> built_in_machine_list() {
  std::vector<std::string> names;
  for (const BuiltIn& machine : kBuiltIn) names.emplace_back(machine.name);
  return names;
}

std::string built_in_machine_names() {
  std::string names;
  for (const std::string& name : built_in_machine_list()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

MachineRates default_machine_rates() { return built_in_machine(kDefaultMachine).value(); }

}  // namespace sluice
