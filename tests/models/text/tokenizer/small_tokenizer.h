// A small tokenizer.json for tests to change.
//
// Callers: tests of tokenizers; they include nlohmann/json.hpp in front of this.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::testing {

// A tokenizer.json whose vocabulary is a, b, c, ab, abc, blank and U+2581.
inline nlohmann::json small_file() {
  return nlohmann::json::parse(
      R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": {"type": "Fuse"}, "model": {"type": "BPE",
    "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, " ": 5, "\u2581": 6, "<": 7, ">": 8},
    "merges": ["a b", ["ab", "c"]]}})");
}

inline nlohmann::json added(const std::string& content, uint32_t id, const nlohmann::json& flags) {
  nlohmann::json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(flags);
  return token;
}

}  // namespace sluice::testing
