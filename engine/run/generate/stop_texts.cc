#include "engine/run/generate/stop_texts.h"

#include <algorithm>

namespace sluice {

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (const std::string& text : texts_) longest_ = std::max(longest_, text.size());
}

bool StopTexts::found(const std::string& part) {
  if (texts_.empty() || part.empty()) return false;
  last_ += part;
  for (const std::string& text : texts_) {
    const size_t before = last_.size() - part.size();  // matches that end here or before were found
    const size_t from = before + 1 > text.size() ? before + 1 - text.size() : 0;
    if (last_.find(text, from) != std::string::npos) return true;
  }
  if (last_.size() >= longest_) last_.erase(0, last_.size() - (longest_ - 1));
  return false;
}

}  // namespace sluice
