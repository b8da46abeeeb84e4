// What a user chooses about samples.
#pragma once

#include <cstdint>

namespace sluice {

// What is trained of conversations: the answers of the assistant, every token, or the last answer.
enum class TrainOn : uint8_t { answers, all, last };

// Where spellings of control tokens become control tokens: only in what the template itself writes, or also
// in users' text, as transformers has it.
enum class ControlTokens : uint8_t { of_template, anywhere };

}  // namespace sluice
