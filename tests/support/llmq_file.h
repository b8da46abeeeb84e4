// Bytes of LLMQ's token files (models/data/llmq_file.h), as its scripts/tokenize_data.py writes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct LlmqNumbers {
  int32_t version = 2, token_bytes = 4, tokens = 0, vocabulary = 0, has_masks = 0;
};

inline std::string llmq_header(const LlmqNumbers& numbers) {
  std::string header = "BIN.TOK\n";
  header.append(reinterpret_cast<const char*>(&numbers), sizeof numbers);
  header.resize(1023, '*');
  return header + '\n';
}

// `masks` has a value for each token. If `masks` is empty, the file has no masks.
inline std::string llmq_bytes(const std::vector<int32_t>& tokens, const std::vector<bool>& masks,
                              int32_t vocabulary) {
  std::string bytes = llmq_header({.tokens = static_cast<int32_t>(tokens.size()),
                                   .vocabulary = vocabulary,
                                   .has_masks = masks.empty() ? 0 : 1});
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]);
  std::string bits((masks.size() + 7) / 8, '\0');
  for (size_t i = 0; i < masks.size(); ++i)
    if (masks[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  return bytes + bits;
}

}  // namespace sluice
