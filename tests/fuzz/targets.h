// The readers of bytes from outside, one function each: fuzzers call them, and parser_fuzz_test replays them.
//
// A function reads its input and uses what it read. It returns true; or false where the reader refused the
// input as its header says: with an Error of one printable sentence and a remedy, or, for records, with a
// std::invalid_argument. Whatever else is thrown is a bug, as is a crash, a finding of a sanitizer, or a few
// kilobytes that take seconds. Fixtures are read from the repository root. One thread.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::fuzzing {

using Input = std::span<const uint8_t>;

// A tokenizer.json or tokenizer.model, a zero byte, and a text. Without a zero byte, a text of ours is used.
bool fuzz_tokenizer(Input input);
// A chat template, a zero byte, and its variables in JSON. Without variables, a conversation of ours is used.
bool fuzz_chat_template(Input input);
// A file of records. Returns the result of the first line.
bool fuzz_records(Input input);
// tokenizer_config.json, a zero byte, special_tokens_map.json, a zero byte, and generation_config.json.
bool fuzz_text_model(Input input);
// A safetensors file.
bool fuzz_safetensors(Input input);
// A config.json.
bool fuzz_model_config(Input input);
// NAME:KEY=VALUE,... of --model.
bool fuzz_model_description(Input input);
// A machine description.
bool fuzz_machine(Input input);
// A configuration file of the command.
bool fuzz_config_file(Input input);

}  // namespace sluice::fuzzing
