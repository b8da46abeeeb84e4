// Messages of a conversation as values, which several renders share. A render takes the first messages, as
// many as it asks for.
//
// A message becomes a value when it is first asked for, and stays one. Each render is charged for the
// messages that it gets as if it had made them. One thread at a time. Caller: Interpreter::render.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "models/text/template/value.h"

namespace sluice::jinja {

class MessageValues {
 public:
  explicit MessageValues(const nlohmann::ordered_json& list)
      : list_(list) {}  // an array, which outlives this

  // The list of the first `count` messages. `source` becomes the number of the next string. Throws Fault.
  Value first(size_t count, uint32_t& source, Budget& budget);

 private:
  struct Cost {
    uint64_t steps = 0, bytes = 0;
    uint32_t next_source = 0;
  };
  const nlohmann::ordered_json& list_;
  Values values_;
  std::vector<Cost> costs_;  // of this message and all before it
};

struct FirstMessages {
  MessageValues* list;
  size_t count;
};

}  // namespace sluice::jinja
