// Whether the text of a conversation depends on a value that the conversation has.
//
// A value is read if the template refuses the conversation or writes another text once the value is removed
// or altered. Strings are found in the text itself (unread.h). Numbers, booleans, lists of them, and words
// that templates write in their own way need a probe. A ReadProbe renders its one conversation once, and up
// to twice more for each path and kind of value. Caller: UnreadStrings.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "models/text/samples/chat_renderer.h"

namespace sluice {

// The path of the value that the object at `path` has under `key`. All names of parameters have one path,
// "tools[].function.parameters.properties.*", since a schema may have any number of them.
std::string path_of_value(const std::string& path, const std::string& key);

class ReadProbe {
 public:
  // `conversation` as adapted; both outlive this.
  ReadProbe(const ChatRenderer& renderer, const Conversation& conversation)
      : renderer_(renderer), conversation_(conversation) {}

  // Whether the name stands anywhere in the template, as a whole word.
  bool mentions(const std::string& name) const { return renderer_.mentions(conversation_, name); }
  // Whether the template reads any value of the same kind as `value` at the path. Paths are written as
  // "message.index" and "tools[].function.strict", and "part.index" for a part of a content.
  bool reads(const std::string& path, const nlohmann::ordered_json& value);

 private:
  struct Target {
    std::string path;
    int kind;
    auto operator<=>(const Target&) const = default;
  };
  enum class Change { remove, alter };
  static nlohmann::ordered_json changed(const nlohmann::ordered_json& json, const std::string& at,
                                        const Target& target, Change change);
  // Renders the conversation with this change; nullopt: the template refuses it.
  std::optional<std::string> text_with(const Target& target, Change change) const;
  std::optional<std::string> text_of(const Conversation& conversation) const;

  const ChatRenderer& renderer_;
  const Conversation& conversation_;
  std::optional<std::string> text_;  // of the conversation as it is; made when it is needed
  std::map<Target, bool> known_;
};

}  // namespace sluice
