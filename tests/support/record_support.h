// Parses a line as a record, and returns what is said of a line that is refused.
#pragma once

#include <stdexcept>
#include <string>

#include "models/text/records/record.h"

namespace sluice {

inline Conversation chat(const std::string& line, RecordForm form = RecordForm::automatic,
                         const NameMap& names = {}) {
  return std::get<Conversation>(parse_record(line, form, names));
}
inline PlainText text(const std::string& line, RecordForm form = RecordForm::automatic) {
  return std::get<PlainText>(parse_record(line, form, {}));
}
inline std::string fault(const std::string& line, RecordForm form = RecordForm::automatic) {
  try {
    parse_record(line, form, {});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

inline std::string remedy(const std::string& line) {
  try {
    parse_record(line, RecordForm::automatic, {});
  } catch (const RefusedRecord& error) {
    return remedy_of(error, "");
  }
  return "";
}

}  // namespace sluice
