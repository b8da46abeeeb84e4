// 1. Text is copied up to the first character that may change; most text has none.
// 2. A part begins with the character before that one, since the two may combine, and ends before the next
//    that cannot change. The part is decomposed, its marks are ordered by combining class, and the part is
//    composed (UAX #15, 1.2 and 1.3).
// 3. Each resulting character carries how many characters it replaces, which gives its origin.
#include "models/text/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "models/text/unicode.h"

namespace sluice {
namespace {

struct Range {
  char32_t first, last;
};

// Characters added after Unicode 9 that decompose or have a combining class. Found by asking Hugging Face
// tokenizers for every character of Unicode 14; those of Unicode 15 (0xECE, 0x10EFD, 0x11F41, 0x1E08F,
// 0x1E4EC) are from UnicodeData.txt.
constexpr std::array<Range, 38> kNewer = {{
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
}};

// Characters of combining class 0 that compose with the one before them.
constexpr std::array<Range, 23> kComposing = {{
    {0x9BE, 0x9BE},     {0x9D7, 0x9D7},     {0xB3E, 0xB3E},     {0xB56, 0xB57},     {0xBBE, 0xBBE},
    {0xBD7, 0xBD7},     {0xCC2, 0xCC2},     {0xCD5, 0xCD6},     {0xD3E, 0xD3E},     {0xD57, 0xD57},
    {0xDCF, 0xDCF},     {0xDDF, 0xDDF},     {0x102E, 0x102E},   {0x1161, 0x1175},   {0x11A8, 0x11C2},
    {0x1B35, 0x1B35},   {0x11127, 0x11127}, {0x1133E, 0x1133E}, {0x11357, 0x11357}, {0x114B0, 0x114B0},
    {0x114BA, 0x114BA}, {0x114BD, 0x114BD}, {0x115AF, 0x115AF},
}};

constexpr char32_t kFirstChanging = 0x300;  // characters below change only if one from here on follows

template <size_t n>
bool is_in(const std::array<Range, n>& ranges, char32_t c) {
  const auto range =
      std::partition_point(ranges.begin(), ranges.end(), [&](const Range& r) { return r.last < c; });
  return range != ranges.end() && range->first <= c;
}

uint8_t combining_class(char32_t c) {
  if (c < kFirstChanging || is_in(kNewer, c)) return 0;
  return static_cast<uint8_t>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

bool may_change(char32_t c) {
  if (c < kFirstChanging || (c >= 0xAC00 && c <= 0xD7A3)) return false;  // Hangul syllables are composed
  const auto* const property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  const bool decomposes = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
  return (decomposes || property->combining_class != 0 || is_in(kComposing, c)) && !is_in(kNewer, c);
}

struct Item {
  char32_t c;
  uint8_t combining_class;
  int replaced;  // characters of the old text
};

void decompose(char32_t c, std::vector<Item>& items) {
  std::array<utf8proc_int32_t, 16> parts{static_cast<utf8proc_int32_t>(c)};  // at most 4 in any version
  utf8proc_ssize_t count = 1;
  if (!is_in(kNewer, c))
    count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                    static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE),
                                    nullptr);
  for (utf8proc_ssize_t k = 0; k < count; ++k) {
    const auto part = static_cast<char32_t>(parts[static_cast<size_t>(k)]);
    items.push_back({part, combining_class(part), k == 0 ? 1 : 0});
  }
}

void order_marks(std::vector<Item>& items) {
  for (auto begin = items.begin(); begin != items.end();) {
    const auto end =
        std::find_if(begin + 1, items.end(), [](const Item& i) { return i.combining_class == 0; });
    std::stable_sort(begin->combining_class == 0 ? begin + 1 : begin, end,
                     [](const Item& a, const Item& b) { return a.combining_class < b.combining_class; });
    begin = end;
  }
}

// Nothing composes to U+0000, which stands for no character.
char32_t composed(char32_t a, char32_t b) {
  if (is_in(kNewer, a) || is_in(kNewer, b)) return 0;
  std::array<utf8proc_int32_t, 2> pair = {static_cast<utf8proc_int32_t>(a), static_cast<utf8proc_int32_t>(b)};
  const auto count = utf8proc_normalize_utf32(
      pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  return count == 1 ? static_cast<char32_t>(pair[0]) : 0;
}

void compose(std::vector<Item>& items) {
  size_t kept = 0;                // items[0, kept) are done
  size_t starter = items.size();  // index of the kept item that the next may compose with
  int class_between = -1;         // of the last item behind the starter
  for (size_t i = 0; i < items.size(); ++i) {
    const Item item = items[i];
    if (starter < items.size() && (class_between < item.combining_class)) {
      if (const char32_t c = composed(items[starter].c, item.c)) {
        items[starter].c = c;
        items[starter].replaced += item.replaced;
        continue;
      }
    }
    if (item.combining_class == 0) starter = kept;
    class_between = item.combining_class == 0 ? -1 : item.combining_class;
    items[kept++] = item;
  }
  items.resize(kept);
}

}  // namespace

void normalize_nfc(std::string& text, std::vector<uint32_t>& origin) {
  std::string to;
  std::vector<uint32_t> to_origin;
  size_t copied = 0;
  const auto copy_to = [&](size_t end) {
    to.append(text, copied, end - copied);
    to_origin.insert(to_origin.end(), origin.begin() + static_cast<std::ptrdiff_t>(copied),
                     origin.begin() + static_cast<std::ptrdiff_t>(end));
    copied = end;
  };
  std::vector<Item> items;
  size_t before = 0;  // where the last character begins that cannot change
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!may_change(next_code_point(text, at))) {
      before = begin;
      continue;
    }
    copy_to(std::max(before, copied));
    items.clear();
    size_t end = copied;
    while (end < text.size()) {
      size_t next = end;
      const char32_t c = next_code_point(text, next);
      if (end > begin && !may_change(c)) break;
      decompose(c, items);
      end = next;
    }
    order_marks(items);
    compose(items);
    size_t old = copied;
    for (const Item& item : items) {
      const size_t from = item.replaced > 0 ? old : old - std::min<size_t>(old, 1);
      const size_t size = to.size();
      append_code_point(to, item.c);
      to_origin.insert(to_origin.end(), to.size() - size, origin[from]);
      for (int k = 0; k < item.replaced; ++k) next_code_point(text, old);
    }
    copied = at = end;
    before = end;
  }
  if (copied == 0) return;
  copy_to(text.size());
  text = std::move(to);
  origin = std::move(to_origin);
}

}  // namespace sluice
