// Typed access to the keys of one config.json. To complain is to throw an Error(malformed_file) that names
// file and key.
//
// null counts as absent. Numbers are never taken from booleans or strings, integers never from fractions.
// Used by config.cc and the families; the JSON outlives the reader.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/families/config.h"

namespace sluice {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const;                       // present and not null
  bool is_list(const char* key) const;                   // present, and a list
  bool is_null(const char* key) const;                   // present and null: for keys with another default
  int64_t integer(const char* key, int64_t most) const;  // 1..most, required
  int64_t integer_or(const char* key, int64_t most, int64_t otherwise) const;
  double number(const char* key) const;  // finite, required
  double number_or(const char* key, double otherwise) const;
  bool flag_or(const char* key, bool otherwise) const;
  std::string text(const char* key) const;  // required
  std::string text_or(const char* key, const std::string& otherwise) const;

  // For keys that change the mathematics. All of these accept an absent key.
  void reject_present(const char* key) const;  // whatever its value
  void reject_flag(const char* key) const;     // complains about true
  void require_number(const char* key, double supported) const;
  void require_text(const char* key, std::initializer_list<const char*> supported) const;  // one of these
  // Requires each text of a list, such as layer_types, to be one of `supported`.
  void require_texts(const char* key, std::initializer_list<const char*> supported) const;

  ConfigReader section(const char* key) const;                         // the object under a key that is there
  std::vector<double> numbers(const char* key) const;                  // finite ones, required
  std::vector<int64_t> integers(const char* key, int64_t most) const;  // each 1..most, one or more
  std::vector<std::string> texts(const char* key) const;               // required

  [[noreturn]] void complain(const std::string& what, const std::string& remedy) const;

 private:
  void require_one_of(const char* key, const std::string& value,
                      std::initializer_list<const char*> supported) const;
  const nlohmann::json& at(const char* key) const;

  const nlohmann::json& object_;
  std::string where_;
};

// Largest sizes that are accepted: far beyond any model, and small enough that a product of two fits 64 bits.
constexpr int64_t kVocabularyMax = int64_t{1} << 28, kContextMax = int64_t{1} << 28;
constexpr int64_t kWidthMax = int64_t{1} << 20, kFfnMax = int64_t{1} << 22;
constexpr int64_t kLayersMax = int64_t{1} << 11, kHeadsMax = int64_t{1} << 16, kExpertsMax = int64_t{1} << 12;

}  // namespace sluice
