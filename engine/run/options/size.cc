#include "engine/run/options/size.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>

#include "engine/base/error.h"

namespace sluice {
namespace {

struct SizeUnit {
  const char* name;
  uint64_t bytes;
};
constexpr SizeUnit kUnits[] = {
    // in lower case
    {"", 1},
    {"b", 1},
    {"kb", 1000},
    {"mb", 1000'000},
    {"gb", 1000'000'000},
    {"tb", 1000'000'000'000},
    {"kib", 1u << 10},
    {"mib", 1u << 20},
    {"gib", 1u << 30},
    {"tib", uint64_t{1} << 40},
};

[[noreturn]] void reject(const std::string& text, const std::string& option, const char* reason) {
  throw Error(ExitCode::usage, fmt::format("`{}` for --{} {}.", printable(text), option, reason),
              fmt::format("Write --{} as 1.5GiB, 800MB, 80% or auto.", option));
}

// Unsigned decimal with an optional fraction, as digits.
struct Decimal {
  std::string whole, fraction, rest;
};

Decimal split_decimal(const std::string& text) {
  Decimal out;
  size_t i = 0;
  const auto digits = [&](std::string& to) {
    while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]))) to += text[i++];
  };
  digits(out.whole);
  if (!out.whole.empty() && i + 1 < text.size() && text[i] == '.' &&
      std::isdigit(static_cast<unsigned char>(text[i + 1]))) {
    ++i;
    digits(out.fraction);
  }
  if (!out.whole.empty() && i < text.size() && text[i] == ' ') ++i;  // "1.5 GiB"
  out.rest = text.substr(i);
  return out;
}

// Exact: whole * unit + floor(0.fraction * unit). False on overflow.
bool multiply(const Decimal& number, uint64_t unit, uint64_t& bytes) {
  uint64_t whole = 0;
  const char* end = number.whole.data() + number.whole.size();
  if (std::from_chars(number.whole.data(), end, whole).ec != std::errc{}) return false;
  // Horner's rule from the last digit: floors nest, and 9 * 2^40 + part stays far below 2^64.
  uint64_t part = 0;
  for (size_t i = number.fraction.size(); i-- > 0;)
    part = (static_cast<uint64_t>(number.fraction[i] - '0') * unit + part) / 10;
  return !__builtin_mul_overflow(whole, unit, &bytes) && !__builtin_add_overflow(bytes, part, &bytes);
}

Size parse_percent(const Decimal& number, const std::string& text, const std::string& option) {
  Size size;
  size.kind = Size::Kind::percent;
  const std::string digits = number.whole + "." + number.fraction + "0";
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), size.percent);
  if (result.ec != std::errc{} || !(size.percent > 0 && size.percent <= 100))
    reject(text, option, "is not a percentage above 0 and up to 100");
  return size;
}

}  // namespace

Size parse_size(const std::string& text, const std::string& option) {
  if (text == "auto") return {};
  if (text.starts_with('-')) reject(text, option, "is negative");
  const Decimal number = split_decimal(text);
  if (number.whole.empty()) reject(text, option, "is not a size");
  if (number.rest == "%") return parse_percent(number, text, option);
  std::string unit_name;
  for (const char c : number.rest)
    unit_name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const SizeUnit& unit : kUnits) {
    if (unit_name != unit.name) continue;
    if (unit.bytes == 1 && !number.fraction.empty()) reject(text, option, "is not a whole number of bytes");
    Size size;
    size.kind = Size::Kind::bytes;
    if (!multiply(number, unit.bytes, size.bytes)) reject(text, option, "is more than 2^64 - 1 bytes");
    return size;
  }
  reject(text, option, "is not a size");
}

std::string size_text(const Size& size) {
  switch (size.kind) {
    case Size::Kind::automatic:
      return "auto";
    case Size::Kind::percent:  // below 1e-4, the shortest text would have an exponent
      return size.percent < 1e-4 ? fmt::format("{:.24f}%", size.percent) : fmt::format("{}%", size.percent);
    case Size::Kind::bytes:
      for (const auto& [name, bytes] : {SizeUnit{"GiB", 1u << 30}, {"MiB", 1u << 20}, {"KiB", 1u << 10}})
        if (size.bytes > 0 && size.bytes % bytes == 0) return fmt::format("{}{}", size.bytes / bytes, name);
      return fmt::format("{}{}", size.bytes, size.bytes > 0 && size.bytes < kPlainBytesLeast ? "B" : "");
  }
  check_failed("kind", __FILE__, __LINE__, "a size of no kind");
}

}  // namespace sluice
