// Values of the form NAME=VALUE, and texts with line ends. Callers: those who read data or prompts.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice {

// Name and value, neither of them empty. Throws Error(usage), which names the option.
std::pair<std::string, std::string> split_at_equals(const std::string& text, const char* option);

// \n, \t and \\ as in C.
std::string unescaped(const std::string& text);

// The JSON object of --template-values. Throws Error(usage).
std::string template_values_json(const std::vector<std::string>& given);

}  // namespace sluice
