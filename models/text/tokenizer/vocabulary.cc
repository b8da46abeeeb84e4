#include "models/text/tokenizer/vocabulary.h"

#include "engine/base/error.h"

namespace sluice {

bool Vocabulary::add(std::string content, uint32_t id) {
  CHECK(id <= kIdMax, "readers check ids");
  if (content_of(id) != nullptr || ids_.contains(content)) return false;
  const std::string& kept = contents_.emplace_back(std::move(content));
  ids_.emplace(kept, id);
  if (id >= by_id_.size()) by_id_.resize(id + 1);
  by_id_[id] = &kept;
  return true;
}

std::optional<uint32_t> Vocabulary::id_of(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::content_of(uint32_t id) const {
  return id < by_id_.size() ? by_id_[id] : nullptr;
}

}  // namespace sluice
