// The tokens of a model: strings and their ids.
//
// Ids need not be dense, but are at most kIdMax. Callers: the readers fill one; everything that tokenizes
// looks tokens up.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice {

constexpr uint32_t kIdMax = (1u << 24) - 1;  // published vocabularies have up to 300,000 tokens

class Vocabulary {
 public:
  // False when the content or the id is there already.
  bool add(std::string content, uint32_t id);

  std::optional<uint32_t> id_of(std::string_view content) const;
  const std::string* content_of(uint32_t id) const;                      // nullptr if there is none
  const std::deque<std::string>& contents() const { return contents_; }  // in the order in which they came
  size_t size() const { return ids_.size(); }
  uint32_t id_end() const { return static_cast<uint32_t>(by_id_.size()); }  // above every id

 private:
  std::deque<std::string> contents_;  // never moves, so that ids_ can refer to it
  std::unordered_map<std::string_view, uint32_t> ids_;
  std::vector<const std::string*> by_id_;  // nullptr where there is none
};

}  // namespace sluice
