// Finds texts that end an answer as soon as the answer contains one, as stop_strings of transformers do.
// Owner: the caller of Generator::answer(), one for each answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice {

class StopTexts {
 public:
  // None of the texts is empty.
  explicit StopTexts(std::vector<std::string> texts);

  // Whether one of the texts ends within `part`, which follows the parts so far.
  bool found(const std::string& part);

 private:
  std::vector<std::string> texts_;
  size_t longest_ = 0;
  std::string last_;  // the end of the parts so far, in which a text may have begun
};

}  // namespace sluice
