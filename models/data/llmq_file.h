// LLMQ's token file, version 2: "BIN.TOK\n"; int32 version, bytes of a token, tokens, vocabulary, whether it
// has masks; padding up to byte 1024; int32 tokens; and, with masks, one bit for each token, bit i % 8 of
// byte i / 8 for token i, set where the token is trained. Little-endian, nothing behind it. Source: LLMQ's
// scripts/tokenize_data.py. Caller: token_data.
#pragma once

#include <cstdint>

#include "engine/base/file.h"

namespace sluice {

constexpr uint64_t kLlmqHeaderBytes = 1024;
constexpr uint64_t kLlmqTokenBytes = 4;

struct LlmqHeader {
  uint64_t tokens = 0;
  uint64_t mask_begin = 0;  // byte of the first mask; 0: there are none, and every token is trained
  uint64_t trained = 0;     // tokens
};

// Whether the file begins with "BIN.TOK\n".
bool is_llmq_file(const InputFile& file);

// Reads the header and the masks of such a file. Throws Error(malformed_file) for a header that is damaged,
// is of another version, or contradicts the file's size or the model's `vocabulary`; and for masks that
// train no token.
LlmqHeader read_llmq_header(const InputFile& file, int64_t vocabulary);

}  // namespace sluice
