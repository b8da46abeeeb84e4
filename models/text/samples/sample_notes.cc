#include "models/text/samples/sample_notes.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/strict_json.h"

namespace sluice {

namespace {

constexpr size_t kNamesMax = 64, kNameBytesMax = 64;
constexpr const char* kOthers = "others";

}  // namespace

void count(SampleNotes::ByName& names, const std::string& name, uint64_t times) {
  const bool is_kept = name.size() <= kNameBytesMax && (names.contains(name) || names.size() < kNamesMax);
  names[is_kept ? name : kOthers] += times;
}

SampleNotes& SampleNotes::operator+=(const SampleNotes& other) {
  for (const auto& [name, times] : other.unread) count(unread, name, times);
  for (const auto& [name, times] : other.unknown_roles) count(unknown_roles, name, times);
  for (const auto& [token, times] : other.ends) ends[token] += times;
  endless += other.endless, unmarked += other.unmarked, cut += other.cut, empty += other.empty;
  masked += other.masked, whole += other.whole, unwanted += other.unwanted;
  rendered += other.rendered, opened += other.opened;
  if (no_end.empty()) no_end = other.no_end;
  if (opening.empty()) opening = other.opening;
  if (refusal.empty()) refusal = other.refusal;
  return *this;
}

std::string json_of(const SampleNotes& notes) {
  nlohmann::ordered_json json{{"unread", notes.unread},     {"unknown_roles", notes.unknown_roles},
                              {"endless", notes.endless},   {"no_end", notes.no_end},
                              {"unmarked", notes.unmarked}, {"cut", notes.cut},
                              {"empty", notes.empty},       {"masked", notes.masked},
                              {"whole", notes.whole},       {"refusal", notes.refusal},
                              {"rendered", notes.rendered}, {"opened", notes.opened},
                              {"opening", notes.opening},   {"unwanted", notes.unwanted}};
  auto& ends = json["ends"] = nlohmann::ordered_json::array();
  for (const auto& [token, times] : notes.ends) ends.push_back({token, times});
  return json.dump();
}

SampleNotes notes_of_json(const std::string& text) try {
  const nlohmann::json json = parse_strict_json(text);
  SampleNotes notes;
  json.at("unread").get_to(notes.unread);
  json.at("unknown_roles").get_to(notes.unknown_roles);
  for (const auto& end : json.at("ends")) notes.ends[end.at(0).get<uint32_t>()] = end.at(1).get<uint64_t>();
  json.at("endless").get_to(notes.endless);
  json.at("no_end").get_to(notes.no_end);
  json.at("unmarked").get_to(notes.unmarked);
  json.at("cut").get_to(notes.cut);
  json.at("empty").get_to(notes.empty);
  json.at("masked").get_to(notes.masked);
  json.at("whole").get_to(notes.whole);
  json.at("unwanted").get_to(notes.unwanted);
  json.at("refusal").get_to(notes.refusal);
  json.at("rendered").get_to(notes.rendered);
  json.at("opened").get_to(notes.opened);
  json.at("opening").get_to(notes.opening);
  return notes;
} catch (const nlohmann::json::exception& error) {
  throw std::invalid_argument(error.what());
}

}  // namespace sluice
