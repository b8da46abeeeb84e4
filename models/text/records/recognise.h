// Which form a record has, and which records are refused whatever their form. Caller: parse_record(). All
// throw as it does.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "models/text/records/record_form.h"
#include "models/text/records/record_reader.h"

namespace sluice {

// The keys of an object that say who says it and what it says, under any of the names that files have for
// them; nullptr: it has none of these.
struct MessageKeys {
  const char *role = nullptr, *content = nullptr;
};
MessageKeys message_keys(const nlohmann::ordered_json& value);

// By its keys.
RecordForm recognised(const RecordReader& reader);

// Preferences would teach what they warn of. A key that --data-keys names for something else is taken at that
// word.
void refuse_preferences(const RecordReader& reader);

// So would answers that are marked as bad ones: by TRL as "label", by LLaMA-Factory as "kto_tag". A record
// may also say that it is not to be trained.
void refuse_bad_answer(const RecordReader& reader, RecordForm form);

// Keys by which messages say whether they are trained: OpenAI's, axolotl's two, ms-swift's two, and others.
inline constexpr std::array<const char*, 7> kMaskKeys = {"weight",     "train",     "training", "loss",
                                                         "loss_scale", "loss_mask", "trainable"};

// What a mark of an answer says, in one of the ways in which files write that; none: neither good nor bad.
std::optional<bool> verdict_of(const nlohmann::ordered_json& mark);

}  // namespace sluice
