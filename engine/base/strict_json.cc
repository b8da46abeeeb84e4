#include "engine/base/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr size_t kDepthMax = 64;     // no format that is read here needs more than six
constexpr size_t kKeyShownMax = 60;  // bytes

// Builds the value of a text from the parser's events. `Place` says where a byte stands: "line 3".
template <typename Json, typename Place>
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& text, const std::vector<JsonEntries>& taken) : text_(text), taken_(taken) {}

  Json result() { return std::move(result_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& digits) override {
    // Lines of data (Column) are read so that no digit of an integer is lost.
    if (Place::kKeepsIntegers && digits.find_first_of(".eE") == std::string::npos)
      throw std::invalid_argument("it holds an integer beyond 64 bits");
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // no JSON text has one
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    Frame& frame = open_.back();
    if (frame.taken == nullptr && is_given(frame, key))
      throw std::invalid_argument(
          fmt::format("\"{}\" is given twice", printable(key.substr(0, kKeyShownMax))));
    frame.key = std::move(key);
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    if (dynamic_cast<const typename Json::out_of_range*>(&error) != nullptr)
      throw std::invalid_argument("it holds a number that is too large");
    if (byte > text_.size()) throw std::invalid_argument("it ends in the middle of its JSON");
    const size_t at = byte > 0 ? byte - 1 : 0;
    if (std::string_view(error.what()).find("ill-formed UTF-8") != std::string_view::npos)
      throw std::invalid_argument(Place()(text_, at) + " is not UTF-8, which JSON is in");
    throw not_json(at);
  }

  std::invalid_argument not_json(size_t byte) const {
    return std::invalid_argument(Place()(text_, byte) + " is not valid JSON");
  }

 private:
  struct Frame {  // an object or list that is open
    Json value;
    std::string path, key;  // key: of the entry that comes next
    const JsonEntries* taken = nullptr;
    std::unordered_set<std::string> keys;  // of a large object whose own search is linear
  };

  static constexpr bool kIsOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  static bool is_given(Frame& frame, const std::string& key) {
    constexpr size_t kFew = 32;
    if (!kIsOrdered || frame.value.size() < kFew) return frame.value.contains(key);
    if (frame.keys.empty())
      for (const auto& [known, value] : frame.value.items()) frame.keys.insert(known);
    return !frame.keys.insert(key).second;
  }

  // An entry whose key is new.
  static void add_entry(Frame& frame, Json&& value) {
    if constexpr (kIsOrdered)
      frame.value.template get_ref<typename Json::object_t&>().push_back(
          {std::move(frame.key), std::move(value)});
    else
      frame.value[std::move(frame.key)] = std::move(value);
  }

  bool open(Json&& value) {
    if (open_.size() >= kDepthMax) throw std::invalid_argument("it is nested too deeply");
    Frame frame{std::move(value)};
    if (!open_.empty() && open_.back().value.is_object() && open_.back().taken == nullptr) {
      const Frame& outer = open_.back();
      frame.path = outer.path.empty() ? outer.key : outer.path + '.' + outer.key;
      for (const JsonEntries& entries : taken_)
        if (entries.path == frame.path) frame.taken = &entries;
    }
    open_.push_back(std::move(frame));
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json&& value) {
    if (open_.empty()) {
      result_ = std::move(value);
      return true;
    }
    Frame& frame = open_.back();
    if (frame.taken != nullptr)
      take(frame, std::move(value));
    else if (frame.value.is_object())
      add_entry(frame, std::move(value));
    else
      frame.value.push_back(std::move(value));
    return true;
  }

  static void take(Frame& frame, nlohmann::json value) {
    frame.taken->take(std::move(frame.key), std::move(value));
  }

  const std::string& text_;
  const std::vector<JsonEntries>& taken_;
  std::vector<Frame> open_;  // outermost first
  Json result_;
};

template <typename Json, typename Place>
Json parse(const std::string& text, const std::vector<JsonEntries>& taken) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw std::invalid_argument("it is empty");
  Builder<Json, Place> builder(text, taken);
  // The parser would take a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string::npos) throw builder.not_json(zero);
  Json::sax_parse(text, &builder);
  return builder.result();
}

struct Line {
  static constexpr bool kKeepsIntegers = false;
  std::string operator()(const std::string& text, size_t byte) const {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(byte);
    return fmt::format("line {}", 1 + std::count(text.begin(), end, '\n'));
  }
};
struct Column {
  static constexpr bool kKeepsIntegers = true;
  std::string operator()(const std::string&, size_t byte) const { return fmt::format("column {}", byte + 1); }
};

}  // namespace

nlohmann::json parse_strict_json(const std::string& text, const std::vector<JsonEntries>& taken) {
  return parse<nlohmann::json, Line>(text, taken);
}

nlohmann::ordered_json parse_strict_json_in_order(const std::string& text) {
  return parse<nlohmann::ordered_json, Line>(text, {});
}

nlohmann::ordered_json parse_strict_json_line(const std::string& line) {
  return parse<nlohmann::ordered_json, Column>(line, {});
}

}  // namespace sluice
