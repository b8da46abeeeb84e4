// Which form a record has, and which records are refused whatever their form. Caller: parse_record(). All
// throw as it does.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "models/text/records/record_form.h"
#include "models/text/records/record_reader.h"

namespace sluice {

// By its keys.
RecordForm recognised(const RecordReader& reader);

// Preferences would teach what they warn of. A key that --data-keys names for something else is taken at that
// word.
void refuse_preferences(const RecordReader& reader);

// So would answers that are marked as bad ones: by TRL as "label", by LLaMA-Factory as "kto_tag".
void refuse_bad_answer(const RecordReader& reader, RecordForm form);

// What a mark of an answer says, in one of the ways in which files write that; none: neither good nor bad.
std::optional<bool> verdict_of(const nlohmann::ordered_json& mark);

}  // namespace sluice
