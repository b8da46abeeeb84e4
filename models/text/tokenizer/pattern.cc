// Oniguruma is opened at run time and not linked: it exports regcomp, regexec, regfree and regerror. In a
// program that links Oniguruma, these would replace the C library's functions of the same names.
#include "models/text/tokenizer/pattern.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/shared_library.h"
#include "models/text/tokenizer/counted_pattern.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

constexpr size_t kSourceBytesMax = 100'000;  // published patterns have less than 1,000
// The searches in one text may backtrack kRetriesMax times, and kRetriesPerByte times more for each byte of
// the text: half a second for a word of 300 kB. The same limits hold for calls of callouts, which count what
// does not backtrack (counted_pattern.h). A search begins with few retries and is repeated with more if these
// do not suffice. Only retries that did not suffice are counted. Nearly all searches end within the first few
// retries, and a search takes at most four times what is counted.
constexpr unsigned long kRetriesMax = 40'000'000;
constexpr unsigned long kRetriesPerByte = 256;
constexpr unsigned long kFirstRetries = 256;
constexpr unsigned long kRetriesFactor = 4;
// An entry has about 40 bytes; \p{L}+ needs one for each letter.
constexpr size_t kStackEntries = 100'000, kStackEntriesPerByte = 32, kStackEntriesMax = 20'000'000;

struct Library {
  decltype(&onig_initialize) initialize = nullptr;
  decltype(&onig_new) compile = nullptr;
  decltype(&onig_free) free = nullptr;
  decltype(&onig_search_with_param) search = nullptr;
  decltype(&onig_region_new) new_region = nullptr;
  decltype(&onig_region_free) free_region = nullptr;
  decltype(&onig_new_match_param) new_param = nullptr;
  decltype(&onig_free_match_param) free_param = nullptr;
  decltype(&onig_set_retry_limit_in_match_of_match_param) limit_match = nullptr;
  decltype(&onig_set_retry_limit_in_search_of_match_param) limit_search = nullptr;
  decltype(&onig_set_match_stack_limit_size_of_match_param) limit_stack = nullptr;
  decltype(&onig_set_progress_callout_of_match_param) set_callout = nullptr;
  decltype(&onig_set_callout_user_data_of_match_param) set_callout_data = nullptr;
  decltype(&onig_error_code_to_str) describe = nullptr;
  OnigEncodingType* utf8 = nullptr;
  OnigSyntaxType* syntax = nullptr;
};

Library open_library() {
  SharedLibrary file("libonig.so.5");
  Library library;
  file.find(library.initialize, "onig_initialize");
  file.find(library.compile, "onig_new");
  file.find(library.free, "onig_free");
  file.find(library.search, "onig_search_with_param");
  file.find(library.new_region, "onig_region_new");
  file.find(library.free_region, "onig_region_free");
  file.find(library.new_param, "onig_new_match_param");
  file.find(library.free_param, "onig_free_match_param");
  file.find(library.limit_match, "onig_set_retry_limit_in_match_of_match_param");
  file.find(library.limit_search, "onig_set_retry_limit_in_search_of_match_param");
  file.find(library.limit_stack, "onig_set_match_stack_limit_size_of_match_param");
  file.find(library.set_callout, "onig_set_progress_callout_of_match_param");
  file.find(library.set_callout_data, "onig_set_callout_user_data_of_match_param");
  file.find(library.describe, "onig_error_code_to_str");
  file.find(library.utf8, "OnigEncodingUTF8");
  file.find(library.syntax, "OnigSyntaxOniguruma");
  if (!file.failure().empty())
    throw Error(ExitCode::environment,
                fmt::format("The library for regular expressions cannot be opened: {}.", file.failure()),
                "Install it: apt-get install libonig5.");
  OnigEncoding encodings[] = {library.utf8};
  if (library.initialize(encodings, 1) != ONIG_NORMAL)
    throw Error(ExitCode::environment, "libonig.so.5 does not start.", "Reinstall package libonig5.");
  file.keep_open();
  return library;
}

// Opened by the first pattern, for all threads.
const Library& library() {
  static const Library opened = open_library();
  return opened;
}

std::string description(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = library().describe(text.data(), code, info);
  return printable(std::string(reinterpret_cast<const char*>(text.data()), static_cast<size_t>(length)));
}

const OnigUChar* bytes(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

// Whether a search ended because it took more steps than the limits allow.
bool is_over(int code) {
  return code == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
}

// The number that Oniguruma has for the class of characters that are not assigned.
OnigCtype unassigned_class() {
  std::array<OnigUChar, 2> name = {'C', 'n'};
  const int number = library().utf8->property_name_to_ctype(library().utf8, name.data(), name.data() + 2);
  CHECK(number >= 0, "every Unicode version has the class Cn");
  return static_cast<OnigCtype>(number);
}

}  // namespace

size_t count_unassigned(std::string_view text) {
  static const OnigCtype unassigned = unassigned_class();
  size_t count = 0;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80)
      ++at;
    else
      count += library().utf8->is_code_ctype(next_code_point(text, at), unassigned) != 0;
  }
  return count;
}

struct Pattern::Compiled {
  std::string source;
  OnigRegex regex = nullptr;
  ~Compiled() { library().free(regex); }
};

Pattern::Pattern(const std::string& source) {
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::malformed_file,
                fmt::format("The tokenizer's pattern \"{}\" cannot be used: {}.",
                            printable(source.substr(0, 200)), why),
                "Take the tokenizer.json of the model's release.");
  };
  if (source.size() > kSourceBytesMax) fail(fmt::format("it has more than {} bytes", kSourceBytesMax));
  std::string counted;
  try {
    counted = counted_pattern(source);
  } catch (const std::invalid_argument& error) {
    fail(fmt::format("it has {}, whose work cannot be bounded", error.what()));
  }
  auto compiled = std::make_unique<Compiled>();
  compiled->source = source;
  OnigErrorInfo info{};
  const int code = library().compile(&compiled->regex, bytes(counted), bytes(counted) + counted.size(),
                                     ONIG_OPTION_NONE, library().utf8, library().syntax, &info);
  if (code != ONIG_NORMAL) fail(description(code, &info));
  compiled_ = std::move(compiled);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

struct Matcher::State {
  OnigRegion* region = library().new_region();
  OnigMatchParam* param = library().new_param();
  unsigned long retries = 0, calls = 0;  // that are left
  State() {
    if (region == nullptr || param == nullptr) throw std::bad_alloc();
    library().set_callout(param, &count_call);
    library().set_callout_data(param, this);
  }
  static int count_call(OnigCalloutArgs*, void* state) {
    unsigned long& left = static_cast<State*>(state)->calls;
    return left == 0 ? ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER : (--left, ONIG_CALLOUT_SUCCESS);
  }
  void start_text(size_t bytes) {
    retries = calls = kRetriesMax + kRetriesPerByte * bytes;
    library().limit_stack(param, static_cast<unsigned>(std::min(kStackEntries + kStackEntriesPerByte * bytes,
                                                                kStackEntriesMax)));
  }
  ~State() {
    library().free_region(region, 1);
    library().free_param(param);
  }
};

Matcher::Matcher() = default;
Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

std::optional<ByteRange> Matcher::find(const Pattern& pattern, std::string_view text, size_t from) {
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::malformed_file,
                fmt::format("The tokenizer's pattern \"{}\" cannot be matched: {}.",
                            printable(pattern.compiled_->source.substr(0, 200)), why),
                "Take the tokenizer.json of the model's release, or divide the text.");
  };
  if (!state_) {
    state_ = std::make_unique<State>();
    state_->start_text(text_bytes_);
  }
  const int at = search(pattern, text, from);
  if (at == ONIG_MISMATCH) return std::nullopt;
  if (is_over(at))
    fail(fmt::format("it takes more than {} steps for a text of {} bytes",
                     kRetriesMax + kRetriesPerByte * text_bytes_, text_bytes_));
  if (at < 0) fail(description(at, nullptr));
  const ByteRange match{static_cast<size_t>(state_->region->beg[0]),
                        static_cast<size_t>(state_->region->end[0])};
  // \K inside of (?<=...) moves the start of a match in front of where the search begins.
  if (match.begin < from || match.end < match.begin) fail("a match begins inside of the one before it");
  return match;
}

int Matcher::search(const Pattern& pattern, std::string_view text, size_t from) {
  const OnigUChar* const begin = bytes(text);
  const OnigUChar* const end = begin + text.size();
  for (unsigned long retries = kFirstRetries;; retries *= kRetriesFactor) {
    const unsigned long limit = std::min(retries, std::max(state_->retries, 1ul));  // 0 would be no limit
    library().limit_match(state_->param, limit);
    library().limit_search(state_->param, limit);
    const int at = library().search(pattern.compiled_->regex, begin, end, begin + from, end, state_->region,
                                    ONIG_OPTION_NONE, state_->param);
    if (!is_over(at) || limit >= state_->retries || state_->calls == 0) return at;
    state_->retries -= limit;
  }
}

void Matcher::start_text(size_t bytes) {
  text_bytes_ = bytes;
  if (state_) state_->start_text(bytes);
}

}  // namespace sluice
