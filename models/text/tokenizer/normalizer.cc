#include "models/text/tokenizer/normalizer.h"

#include "models/text/tokenizer/nfc.h"
#include "models/text/tokenizer/piece.h"

namespace sluice {
namespace {

void apply(const NfcNormalizer&, std::string& text, std::vector<uint32_t>& origin) {
  normalize_nfc(text, origin);
}

// What replaces a match has the origin of the match's last character.
void apply(const ReplaceNormalizer& step, std::string& text, std::vector<uint32_t>& origin) {
  size_t match = text.find(step.pattern);
  if (match == std::string::npos) return;
  std::string to;
  std::vector<uint32_t> to_origin;
  to.reserve(text.size() * 2);
  to_origin.reserve(text.size() * 2);
  size_t copied = 0;
  const auto copy_to = [&](size_t end) {
    to.append(text, copied, end - copied);
    to_origin.insert(to_origin.end(), origin.begin() + static_cast<std::ptrdiff_t>(copied),
                     origin.begin() + static_cast<std::ptrdiff_t>(end));
  };
  for (; match != std::string::npos; match = text.find(step.pattern, copied)) {
    copy_to(match);
    copied = match + step.pattern.size();
    to += step.content;
    check_size(to);
    to_origin.insert(to_origin.end(), step.content.size(), origin[copied - 1]);
  }
  copy_to(text.size());
  text = std::move(to);
  origin = std::move(to_origin);
}

void apply(const PrependNormalizer& step, std::string& text, std::vector<uint32_t>& origin) {
  prepend(step.prefix, text, origin);
}

}  // namespace

void prepend(const std::string& prefix, std::string& text, std::vector<uint32_t>& origin) {
  if (text.empty()) return;
  text.insert(0, prefix);
  origin.insert(origin.begin(), prefix.size(), origin.front());
}

void normalize(const std::vector<Normalizer>& steps, std::string& text, std::vector<uint32_t>& origin) {
  for (const Normalizer& step : steps) {
    std::visit([&](const auto& chosen) { apply(chosen, text, origin); }, step);
    check_size(text);
  }
}

}  // namespace sluice
