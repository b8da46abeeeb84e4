// Texts that end an answer where they come up in it, as stop_strings of transformers. Owner: the caller of
// Generator::answer(), one for each answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice {

class StopTexts {
 public:
  // None of them is empty.
  explicit StopTexts(std::vector<std::string> texts);

  // Whether one of them ends within `part`, which follows the parts so far.
  bool found(const std::string& part);

 private:
  std::vector<std::string> texts_;
  size_t longest_ = 0;
  std::string last_;  // of the parts so far, as much as the longest of them can still need
};

}  // namespace sluice
