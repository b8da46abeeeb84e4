// What of a conversation stands in no sample.
//
// A string counts as read if a sample has bytes of it; blank bytes, which templates cut off, count for
// nothing. A field of a message without strings counts as read where the template has its name. Caller:
// SampleMaker.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/text/samples/chat_renderer.h"

namespace sluice {

class UnreadStrings {
 public:
  explicit UnreadStrings(const Conversation& conversation);  // adapted; it outlives this

  // Whatever one sample has of the conversation.
  void add_sample(const Rendered& text);
  // Notes what is in no sample. `answers`: those that were to be trained, ascending. Throws RefusedRecord for
  // one of them whose content is in no sample at all.
  void note(const ChatRenderer& renderer, const std::vector<size_t>& answers, SampleNotes& notes) const;

 private:
  struct Use {
    uint64_t given = 0, used = 0;  // solid bytes
  };
  Use use_of(const nlohmann::ordered_json& json, size_t& source) const;
  void note_content(const nlohmann::ordered_json& message, size_t index, size_t& source, bool is_answer,
                    SampleNotes& notes) const;

  const Conversation& conversation_;
  std::vector<const std::string*> strings_;  // by source
  std::vector<Use> uses_;                    // by source; `used`: the most that a sample has of it
};

}  // namespace sluice
