// The forms that a record may have, as a user names them. record.h says what each is.
#pragma once

#include <cstdint>

namespace sluice {

enum class RecordForm : uint8_t { automatic, messages, sharegpt, alpaca, completion, text };

}  // namespace sluice
