// Which form a record has, and which records are refused whatever their form. Caller: parse_record(). All
// functions throw as parse_record() does.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "models/text/records/record_form.h"
#include "models/text/records/record_reader.h"

namespace sluice {

// The keys of a message's role and content, under any of the names that files have for them; nullptr: the
// object has no such key.
struct MessageKeys {
  const char *role = nullptr, *content = nullptr;
};
MessageKeys message_keys(const nlohmann::ordered_json& value);

// The form, by the record's keys.
RecordForm recognised(const RecordReader& reader);

// Refuses records that prefer one answer to another, since they would teach the worse answer, too. A key that
// --data-keys names for something else is no sign of a preference.
void refuse_preferences(const RecordReader& reader);

// Refuses records whose answer is marked as bad, by TRL as "label", by LLaMA-Factory as "kto_tag", and
// records that say that they are not to be trained.
void refuse_bad_answer(const RecordReader& reader, RecordForm form);

// Keys by which messages say whether they are trained: OpenAI's, axolotl's two, ms-swift's two, and others.
inline constexpr std::array<const char*, 7> kMaskKeys = {"weight",     "train",     "training", "loss",
                                                         "loss_scale", "loss_mask", "trainable"};

// The truth value that a mark of an answer stands for, in any of the ways in which files write it; none: the
// mark means neither true nor false.
std::optional<bool> verdict_of(const nlohmann::ordered_json& mark);

}  // namespace sluice
