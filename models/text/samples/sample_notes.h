// What is to be told about the samples of some data, so that nothing in them is passed over unseen.
//
// One thread makes notes, record by record; notes of parts of the data add up to those of the whole. Callers:
// SampleMaker makes them, models/prepare keeps them in the prepared set and tells them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sluice {

struct SampleNotes {
  using ByName = std::map<std::string, uint64_t>;  // numbers of records, messages or parts
  // What no sample has: keys of records ("images"), fields of messages ("message.name"), parts of contents
  // ("part image_url"), whole messages ("message of developer"), the record's "tools".
  ByName unread;
  ByName unknown_roles;               // messages by a role that neither Sluice nor the chat template knows
  std::map<uint32_t, uint64_t> ends;  // trained answers and texts, by the control token that ends them
  uint64_t endless = 0;               // trained answers and texts that no control token ends
  std::string no_end;                 // why texts have no end token, as a clause; empty: they have one
  uint64_t unmarked = 0;              // trained answers of which a part is outside of {% generation %}
  uint64_t cut = 0;                   // answers with a part that the chat template leaves out of every sample
  uint64_t empty = 0;                 // trained answers that have nothing but blanks
  uint64_t masked = 0;                // answers that are trained although their records say that they are not
  uint64_t unwanted = 0;              // samples without a trained token, as their records ask: texts that are
                                      // empty, and answers that say that they are not trained
  uint64_t rendered = 0;              // texts that a chat template had rendered before, with control tokens
  uint64_t whole = 0;   // texts that are trained as a whole although the last answer is asked for
  std::string refusal;  // why the first record that is left out is refused, as a clause
  uint64_t opened = 0;  // answers that lack tags with which the template's prompt ends
  std::string opening;  // what the first such prompt ends with and its answer lacks

  bool operator==(const SampleNotes&) const = default;
  SampleNotes& operator+=(const SampleNotes& other);
};

// Adds to the count of a name. Names of more than 64 bytes, and names that come after the first 64, share
// one name, so that notes are small whatever the data.
void count(SampleNotes::ByName& names, const std::string& name, uint64_t times = 1);

// JSON text, and back. notes_of_json throws std::invalid_argument.
std::string json_of(const SampleNotes& notes);
SampleNotes notes_of_json(const std::string& json);

}  // namespace sluice
