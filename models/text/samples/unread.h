// The parts of a conversation that are in no sample.
//
// A string counts as read if a sample has bytes of it; blank bytes, which templates cut off, count for
// nothing. A value without strings counts as read if a sample has its key in JSON or a probe finds that it is
// read. So does a string under "type", since templates write types in words of their own. If a value such as
// a list of calls is read in part, the paths of its unread values are noted. Caller: SampleMaker.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/text/samples/chat_renderer.h"
#include "models/text/samples/read_probe.h"

namespace sluice {

class UnreadStrings {
 public:
  // `conversation` is `given` as adapted; both outlive this.
  UnreadStrings(const Conversation& conversation, const Conversation& given);

  // Adds what one sample has of the conversation. `text` is the text of the first `messages` messages.
  void add_sample(const Rendered& text, size_t messages);
  // Notes what is in no sample. `answers`: the answers that were to be trained, ascending. Throws
  // RefusedRecord if no sample has anything of one of these answers.
  void note(const ChatRenderer& renderer, const std::vector<size_t>& answers, SampleNotes& notes) const;

 private:
  struct Use {
    uint64_t given = 0, used = 0;  // solid bytes
    Use& operator+=(const Use& other);
    bool is_lost() const { return given > 0 && used == 0; }
  };
  // `source` is the number of the first string in `json`, and becomes the number after its last string.
  Use use_of(const nlohmann::ordered_json& json, size_t& source) const;
  bool stands_in_json(const std::string& key) const;
  void note_tree(ReadProbe& probe, const nlohmann::ordered_json& json, const std::string& path,
                 size_t& source, SampleNotes& notes) const;
  void note_field(ReadProbe& probe, const nlohmann::ordered_json& value, const std::string& path,
                  size_t& source, SampleNotes& notes) const;
  Use note_parts(ReadProbe& probe, const nlohmann::ordered_json& parts, size_t source,
                 SampleNotes& notes) const;
  Use note_content(ReadProbe& probe, const nlohmann::ordered_json& message, bool is_answer, size_t& source,
                   SampleNotes& notes) const;
  void note_message(ReadProbe& probe, size_t index, bool is_answer, size_t& source, SampleNotes& notes) const;

  const Conversation &conversation_, &given_;
  std::vector<const std::string*> strings_;  // by source
  std::vector<size_t> first_source_;         // by message, and one more
  struct Key {
    size_t message = 0;    // the first that has it
    bool is_read = false;  // a sample has it as JSON has keys
  };
  std::map<std::string, Key> keys_;  // in messages and tools: "type", and keys of values that are no strings
  std::vector<Use> uses_;            // by source; `used`: the most that a sample has of it
};

}  // namespace sluice
