// Values of options: from text, with the words and ranges that are allowed, and back.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <type_traits>

#include "cpu_optim/optimizer.h"
#include "engine/base/error.h"
#include "engine/run/options/options.h"
#include "engine/run/options/size.h"
#include "offload/io/backends.h"

namespace sluice {
namespace {

template <class T>
struct Choice {
  const char* name;
  T value;
};

// The words of a type, in the order in which messages list them.
constexpr Choice<DType> kPrecisions[] = {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
constexpr Choice<RowOrder> kOrders[] = {{"shuffled", RowOrder::shuffled},
                                        {"sequential", RowOrder::sequential}};
constexpr Choice<TokenType> kTokenTypes[] = {{"auto", TokenType::automatic},
                                             {"text", TokenType::text},
                                             {"uint16", TokenType::uint16},
                                             {"uint32", TokenType::uint32}};
constexpr Choice<Schedule> kSchedules[] = {
    {"constant", Schedule::constant}, {"cosine", Schedule::cosine}, {"linear", Schedule::linear}};
constexpr Choice<Shell> kShells[] = {{"bash", Shell::bash}, {"zsh", Shell::zsh}, {"fish", Shell::fish}};
constexpr Choice<DeviceKind> kDevices[] = {{"auto", DeviceKind::automatic},
                                           {"cuda", DeviceKind::cuda},
                                           {"cpu", DeviceKind::cpu},
                                           {"reference", DeviceKind::reference}};
constexpr int kOrdinalMax = 63;  // ordinal of the last GPU that can be named
constexpr Choice<Overlap> kOverlaps[] = {
    {"auto", Overlap::automatic}, {"always", Overlap::always}, {"never", Overlap::never}};
constexpr Choice<Placement> kPlacements[] = {{"auto", Placement::automatic},
                                             {"lowest", Placement::lowest},
                                             {"highest", Placement::highest},
                                             {"weights-first", Placement::weights_first},
                                             {"state-first", Placement::state_first}};
constexpr Choice<WeightShards> kWeightShards[] = {{"all", WeightShards::all}, {"node", WeightShards::node}};
constexpr Choice<Packing> kPackings[] = {{"auto", Packing::automatic}, {"none", Packing::none}};
constexpr Choice<LongSamples> kLongSamples[] = {
    {"cut", LongSamples::cut}, {"divide", LongSamples::divided}, {"refuse", LongSamples::refused}};
constexpr Choice<RecordForm> kRecordForms[] = {
    {"auto", RecordForm::automatic},        {"messages", RecordForm::messages},
    {"sharegpt", RecordForm::sharegpt},     {"alpaca", RecordForm::alpaca},
    {"completion", RecordForm::completion}, {"text", RecordForm::text}};
constexpr Choice<TrainOn> kTrainOns[] = {
    {"answers", TrainOn::answers}, {"all", TrainOn::all}, {"last", TrainOn::last}};
constexpr Choice<ControlTokens> kControlTokens[] = {{"template", ControlTokens::of_template},
                                                    {"anywhere", ControlTokens::anywhere}};
constexpr Choice<BadRecords> kBadRecords[] = {{"refuse", BadRecords::refused}, {"skip", BadRecords::skipped}};

constexpr std::span<const Choice<DType>> choices(DType) { return kPrecisions; }
constexpr std::span<const Choice<RowOrder>> choices(RowOrder) { return kOrders; }
constexpr std::span<const Choice<TokenType>> choices(TokenType) { return kTokenTypes; }
std::vector<Choice<OptimizerKind>> choices(OptimizerKind) {
  std::vector<Choice<OptimizerKind>> all;
  for (int k = 0; k < kOptimizerKinds; ++k)
    all.push_back({optimizer_of(static_cast<OptimizerKind>(k)).name, static_cast<OptimizerKind>(k)});
  return all;
}
constexpr std::span<const Choice<Schedule>> choices(Schedule) { return kSchedules; }
constexpr std::span<const Choice<Shell>> choices(Shell) { return kShells; }
constexpr std::span<const Choice<DeviceKind>> choices(DeviceKind) { return kDevices; }
std::vector<Choice<Recompute>> choices(Recompute) {
  std::vector<Choice<Recompute>> all;
  for (const Recompute level : kRecomputes) all.push_back({recompute_name(level), level});
  return all;
}
constexpr std::span<const Choice<Placement>> choices(Placement) { return kPlacements; }
constexpr std::span<const Choice<Overlap>> choices(Overlap) { return kOverlaps; }
constexpr std::span<const Choice<WeightShards>> choices(WeightShards) { return kWeightShards; }
constexpr std::span<const Choice<Packing>> choices(Packing) { return kPackings; }
constexpr std::span<const Choice<LongSamples>> choices(LongSamples) { return kLongSamples; }
constexpr std::span<const Choice<RecordForm>> choices(RecordForm) { return kRecordForms; }
constexpr std::span<const Choice<TrainOn>> choices(TrainOn) { return kTrainOns; }
constexpr std::span<const Choice<ControlTokens>> choices(ControlTokens) { return kControlTokens; }
constexpr std::span<const Choice<BadRecords>> choices(BadRecords) { return kBadRecords; }
std::vector<Choice<IoChoice>> choices(IoChoice) {
  std::vector<Choice<IoChoice>> all{{"auto", nullptr}};
  for (const IoBackend* backend : kIoBackends) all.push_back({backend->name, backend});
  return all;
}

template <class T>
T parse_choice(const std::string& text, const std::string& option) {
  std::string words;
  for (const auto& choice : choices(T{})) {
    if (text == choice.name) return choice.value;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", choice.name);
  }
  throw Error(ExitCode::usage, fmt::format("`{}` is not a value of --{}.", printable(text), option),
              fmt::format("Choose one of: {}.", words));
}

template <class T>
std::string choice_name(T value) {
  for (const auto& choice : choices(T{}))
    if (choice.value == value) return choice.name;
  check_failed("choice", __FILE__, __LINE__, "value without a name");
}

template <class T>
constexpr bool is_choice = std::is_enum_v<T> || std::is_same_v<T, IoChoice>;

// from_chars over the whole text: blanks, a sign "+", hexadecimal digits and a rest are errors.
template <class Number>
Number parse_whole(const std::string& text, const std::string& option, const char* kind) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range)
    throw Error(ExitCode::usage,
                fmt::format("`{}` for --{} is too large or too small to represent.", printable(text), option),
                fmt::format("Give --{} a number of usual size.", option));
  if (error != std::errc{} || rest != end)
    throw Error(ExitCode::usage, fmt::format("`{}` for --{} is not {}.", printable(text), option, kind),
                fmt::format("Write --{} as in 12{}.", option,
                            std::is_floating_point_v<Number> ? ", 0.5 or 3e-4" : ""));
  return value;
}

// "a whole number from 1 to 1024", "a value at least 0 and below 1"
template <class Number>
std::string range_words(const Range& range) {
  if constexpr (std::is_integral_v<Number>)
    return fmt::format("a whole number from {:.0f} to {:.0f}", range.least, range.most);
  const std::string least =
      fmt::format("a value {} {:g}", range.above_least ? "above" : "at least", range.least);
  if (range.most >= 1e300) return least;
  return fmt::format("{} and {} {:g}", least, range.below_most ? "below" : "at most", range.most);
}

template <class Number>
Number checked(Number value, const OptionRow& row) {
  const Range& range = row.range;
  const auto v = static_cast<double>(value);
  if (v < range.least || v > range.most || (range.above_least && v == range.least) ||
      (range.below_most && v == range.most))
    throw Error(ExitCode::usage, fmt::format("--{} is {}.", row.name, value),
                fmt::format("Give --{} {}{}.", row.name, range_words<Number>(range),
                            std::string_view(row.value).ends_with("|auto") ? ", or auto" : ""));
  return value;
}

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

constexpr const char* kPowerSgd = "powersgd:";
constexpr uint32_t kCompressionRankMax = 64;

Compression parse_compression(const std::string& text, const std::string& option) {
  if (text == "none") return {};
  Compression c;
  const char* const end = text.data() + text.size();
  if (text.starts_with(kPowerSgd)) {
    const auto [rest, error] = std::from_chars(text.data() + std::strlen(kPowerSgd), end, c.rank);
    if (error == std::errc{} && rest == end && c.rank >= 1 && c.rank <= kCompressionRankMax) return c;
  }
  throw Error(ExitCode::usage, fmt::format("`{}` is not a value of --{}.", printable(text), option),
              fmt::format("Write none, or powersgd:RANK with a rank from 1 to {}.", kCompressionRankMax));
}

// The seconds that "90s", "10m", "1.5h" or "1h30m" stands for; nullopt if the text is not a time.
std::optional<double> parse_time(const std::string& text) {
  constexpr std::pair<char, double> kTimeUnits[] = {{'s', 1}, {'m', 60}, {'h', 3600}};
  double seconds = 0;
  for (const char *at = text.data(), *const end = at + text.size(); at != end; ++at) {
    double value = 0;
    const auto [unit, error] = std::from_chars(at, end, value);
    const auto* const known =
        std::find_if(std::begin(kTimeUnits), std::end(kTimeUnits),
                     [&, next = unit](auto& u) { return next != end && u.first == *next; });
    if (error != std::errc{} || value < 0 || known == std::end(kTimeUnits)) return std::nullopt;
    seconds += value * known->second;
    at = unit;
  }
  return seconds;
}

// A time becomes an interval in seconds; a whole number in the row's range becomes an interval in steps. A
// row without a range takes times only.
Interval parse_interval(const std::string& text, const OptionRow& row) {
  const bool takes_steps = row.range.most > 0;
  if (text == "auto" && std::string_view(row.default_text).starts_with("auto")) return {.is_auto = true};
  const bool is_number = text.find_first_not_of("+-0123456789") == std::string::npos;
  if (is_number && takes_steps) return {checked(parse_integer(text, row.name), row), 0};
  if (const auto seconds = parse_time(text); seconds && *seconds > 0 && *seconds <= 1e9) return {0, *seconds};
  throw Error(ExitCode::usage,
              fmt::format("`{}` for --{} is {}.", printable(text), row.name,
                          takes_steps ? "neither a number of steps nor a time" : "no time"),
              fmt::format("Write {} a time above 0 with its unit, as 90s, 10m, 1h30m or 2h.",
                          takes_steps ? "12 for steps, or" : "it as"));
}

// The percentage of a text such as "2%"; none: the text has no percent sign.
std::optional<double> parse_percent(const std::string& text, const OptionRow& row) {
  if (!text.ends_with('%')) return std::nullopt;
  const double percent = parse_real(text.substr(0, text.size() - 1), row.name);
  if (percent < 0 || percent >= 100)
    throw Error(ExitCode::usage, fmt::format("--{} is {}.", row.name, printable(text)),
                "Give a part from 0% to below 100%.");
  return percent;
}

Share parse_share(const std::string& text, const OptionRow& row) {
  if (const auto percent = parse_percent(text, row)) return {*percent};
  if (text == "0") return {};
  throw Error(ExitCode::usage, fmt::format("`{}` for --{} is no part.", printable(text), row.name),
              fmt::format("Write --{} as in 2%.", row.name));
}

StepsOrShare parse_steps_or_share(const std::string& text, const OptionRow& row) {
  if (const auto percent = parse_percent(text, row)) return {0, *percent};
  return {checked(parse_integer(text, row.name), row), 0};
}

std::string interval_text(const Interval& interval) {
  if (interval.is_auto) return "auto";
  return interval.seconds > 0 ? fmt::format("{}s", interval.seconds) : fmt::format("{}", interval.steps);
}

// One value from one text.
template <class T>
T parse_value(const std::string& text, const OptionRow& row) {
  if constexpr (is_optional<T>) {
    if (text == "auto") return std::nullopt;
    try {
      return parse_value<typename T::value_type>(text, row);
    } catch (const Error& error) {
      std::string remedy = error.remedy();
      const bool is_told =
          std::string_view(row.default_text) != "auto" || remedy.find("auto") != std::string::npos;
      if (!is_told) remedy.replace(remedy.size() - 1, 1, ", or auto.");
      throw Error(error.code(), error.what(), remedy);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text != "true" && text != "false")
      throw Error(ExitCode::usage, fmt::format("--{} is a switch and takes no value.", row.name),
                  fmt::format("Write --{} alone; in a file, true or false.", row.name));
    return text == "true";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return checked(parse_integer(text, row.name), row);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return parse_whole<uint64_t>(text, row.name, "a whole number from 0 on");
  } else if constexpr (std::is_same_v<T, double>) {
    return checked(parse_real(text, row.name), row);
  } else if constexpr (std::is_same_v<T, DeviceChoice>) {
    const size_t colon = text.find(':');
    const DeviceChoice device{parse_choice<DeviceKind>(text.substr(0, colon), row.name), 0};
    if (colon == std::string::npos) return device;
    int ordinal = -1;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, ordinal);
    if (device.kind != DeviceKind::cuda || error != std::errc{} || rest != end || ordinal < 0 ||
        ordinal > kOrdinalMax)
      throw Error(ExitCode::usage, fmt::format("`{}` for --{} names no device.", printable(text), row.name),
                  fmt::format("Write cuda:0 to cuda:{} for one of several GPUs.", kOrdinalMax));
    return {device.kind, ordinal};
  } else if constexpr (std::is_same_v<T, Compression>) {
    return parse_compression(text, row.name);
  } else if constexpr (std::is_same_v<T, Size>) {
    const Size size = parse_size(text, row.name);
    const bool is_plain = text.find_first_not_of("0123456789") == std::string::npos;
    if (is_plain && size.bytes > 0 && size.bytes < kPlainBytesLeast)
      throw Error(ExitCode::usage,
                  fmt::format("`{}` for --{} has no unit, and would be bytes.", text, row.name),
                  fmt::format("Write --{} with its unit, as in 1.5GiB or 800MB.", row.name));
    return size;
  } else if constexpr (std::is_same_v<T, Interval>) {
    return parse_interval(text, row);
  } else if constexpr (std::is_same_v<T, Share>) {
    return parse_share(text, row);
  } else if constexpr (std::is_same_v<T, StepsOrShare>) {
    return parse_steps_or_share(text, row);
  } else if constexpr (is_choice<T>) {
    return parse_choice<T>(text, row.name);
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (text.empty())
      throw Error(ExitCode::usage, fmt::format("--{} is empty.", row.name),
                  fmt::format("Give --{} a value.", row.name));
    return text;
  }
}

template <class T>
std::string value_text(const T& value) {
  if constexpr (is_optional<T>) {
    return value ? value_text(*value) : "auto";
  } else if constexpr (std::is_same_v<T, DeviceChoice>) {
    return choice_name(value.kind);
  } else if constexpr (std::is_same_v<T, Compression>) {
    return value.rank == 0 ? "none" : fmt::format("{}{}", kPowerSgd, value.rank);
  } else if constexpr (std::is_same_v<T, Size>) {
    return size_text(value);
  } else if constexpr (std::is_same_v<T, Interval>) {
    return interval_text(value);
  } else if constexpr (std::is_same_v<T, Share>) {
    return fmt::format("{}%", value.percent);
  } else if constexpr (std::is_same_v<T, StepsOrShare>) {
    return value.percent > 0 ? fmt::format("{}%", value.percent) : fmt::format("{}", value.steps);
  } else if constexpr (is_choice<T>) {
    return choice_name(value);
  } else {
    return fmt::format("{}", value);  // doubles: shortest text that reads back to the same bits
  }
}

template <class T>
void append_words(std::vector<std::string>& words) {
  if constexpr (is_optional<T>) {
    words.emplace_back("auto");
    append_words<typename T::value_type>(words);
  } else if constexpr (std::is_same_v<T, DeviceChoice>) {
    append_words<DeviceKind>(words);
  } else if constexpr (std::is_same_v<T, Size>) {
    words.emplace_back("auto");
  } else if constexpr (std::is_same_v<T, Compression>) {
    words.insert(words.end(), {"none", kPowerSgd});
  } else if constexpr (is_choice<T>) {
    for (const auto& choice : choices(T{})) words.emplace_back(choice.name);
  }
}

}  // namespace

std::vector<std::string> option_words(const OptionRow& row) {
  Options scratch;
  std::vector<std::string> words;
  const auto append = [&](auto* field) { append_words<std::remove_pointer_t<decltype(field)>>(words); };
  std::visit(append, row.field(scratch));
  if (!row.hints.words) return words;
  const std::vector<std::string> more = row.hints.words();
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

int64_t parse_integer(const std::string& text, const std::string& option) {
  return parse_whole<int64_t>(text, option, "a whole number");
}

double parse_real(const std::string& text, const std::string& option) {
  const double value = parse_whole<double>(text, option, "a number");
  if (!std::isfinite(value))
    throw Error(ExitCode::usage,
                fmt::format("`{}` for --{} is not a finite number.", printable(text), option),
                fmt::format("Give --{} a finite number.", option));
  return value;
}

void set_option(Options& options, const OptionRow& row, const std::vector<std::string>& values) {
  const auto set = [&](auto* field) {
    using T = std::remove_pointer_t<decltype(field)>;
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      T list;
      const bool is_none = row.hints.words && values == row.hints.words() && values == T{"none"};
      for (const std::string& value : is_none ? T{} : values)
        list.push_back(parse_value<std::string>(value, row));
      *field = std::move(list);
    } else if (std::is_same_v<T, std::string> && values.empty()) {
      *field = {};  // option_values() returns no values for an empty text
    } else {
      if (values.size() != 1)
        throw Error(ExitCode::usage, fmt::format("--{} has {} values.", row.name, values.size()),
                    fmt::format("Give --{} once.", row.name));
      *field = parse_value<T>(values.front(), row);
    }
  };
  std::visit(set, row.field(options));
}

std::vector<std::string> option_values(const Options& options, const OptionRow& row) {
  Options copy = options;  // OptionRow::field takes options that are not const
  const auto get = [&](const auto* field) -> std::vector<std::string> {
    using T = std::remove_cvref_t<decltype(*field)>;
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return *field;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return field->empty() ? std::vector<std::string>{} : std::vector{*field};
    } else if constexpr (std::is_same_v<T, Interval>) {
      const bool is_there = field->is_given() || std::string_view(row.default_text).starts_with("auto");
      return is_there ? std::vector{value_text(*field)} : std::vector<std::string>{};
    } else {
      return {value_text(*field)};
    }
  };
  return std::visit(get, row.field(copy));
}

}  // namespace sluice
