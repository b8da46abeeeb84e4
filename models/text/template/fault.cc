#include "models/text/template/fault.h"

#include <fmt/format.h>

namespace sluice::jinja {

Fault refusal(const std::string& construct) {
  return Fault(construct + " is outside the subset of Jinja that is supported", FaultKind::refused);
}

Error error_at(Position at, const Fault& fault) {
  const std::string what = printable(fault.what());
  const auto error = [&](const std::string& sentence, const char* remedy) {
    return Error(ExitCode::malformed_file,
                 fmt::format("chat template, line {}, column {}: {}.", at.line, at.column, sentence), remedy);
  };
  switch (fault.kind()) {
    case FaultKind::refused:
      return error(what, "Write the template without it.");
    case FaultKind::raised: {
      constexpr size_t kBytesMax = 500;  // it may quote a whole message
      const std::string said = fault.what();
      return error("the template rejects the conversation: " + printable(said.substr(0, kBytesMax)) +
                       (said.size() > kBytesMax ? "..." : ""),
                   "Change the conversation accordingly.");
    }
    case FaultKind::exhausted:
      return error(what, "Correct the template so that it ends, or shorten the conversation.");
    case FaultKind::failed:
      break;
  }
  return error(what, "Correct the template, or the conversation that it is given.");
}

}  // namespace sluice::jinja
