// Random strings for comparing tokenizers. tools/fixtures/tokenizer_strings.py makes the same ones.
//
// Callers: tests of tokenizers; they include nlohmann/json.hpp in front of this.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/text/tokenizer/tokenizer.h"
#include "models/text/unicode.h"

namespace sluice::testing {

constexpr const char* kTokenizerFixtures = "tests/fixtures/tokenizers/";

inline nlohmann::json read_tokenizer_fixture(const std::string& name) {
  std::ifstream file(kTokenizerFixtures + name);
  return nlohmann::json::parse(file);
}

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t bound) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  uint64_t state_;
};

// `material` is the content of strings.json.
inline std::string make_string(uint64_t seed, const nlohmann::json& material) {
  SplitMix random(seed);
  std::string text;
  const auto one_of = [&](const char* key) {
    const auto& list = material.at(key);
    return list[random.below(list.size())];
  };
  for (uint64_t units = 1 + random.below(24); units > 0; --units) {
    const uint64_t kind = random.below(8);
    if (kind < 3) {
      if (random.below(2) == 1) text += ' ';
      text += one_of("words").template get<std::string>();
    } else if (kind == 3) {
      for (uint64_t n = 1 + random.below(5); n > 0; --n) text += static_cast<char>('0' + random.below(10));
    } else if (kind == 4) {
      text += one_of("spaces").template get<std::string>();
    } else if (kind == 5) {
      const auto range = one_of("ranges");
      const auto first = range[0].template get<uint32_t>(), last = range[1].template get<uint32_t>();
      for (uint64_t n = 1 + random.below(4); n > 0; --n)
        append_code_point(text, static_cast<char32_t>(first + random.below(last - first + 1)));
    } else if (kind == 6) {
      for (uint64_t n = 1 + random.below(3); n > 0; --n) text += static_cast<char>(0x21 + random.below(0x5E));
    } else {
      text += one_of("snippets").template get<std::string>();
    }
  }
  return text;
}

// FNV-1a of 32-bit values: ids, begins, and the bytes of a decoded text.
inline uint32_t hash_of(const Encoding& encoding, const std::string& decoded) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001B3; };
  for (const uint32_t id : encoding.ids) add(id);
  for (const size_t begin : encoding.begins) add(begin);
  for (const char byte : decoded) add(static_cast<unsigned char>(byte));
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace sluice::testing
