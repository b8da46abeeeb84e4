// A profile's facts as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// profile.md: every section of the page but the drawings. Names from files are escaped.
std::string profile_markdown(const nlohmann::ordered_json& facts);

// A few lines for the terminal.
std::string profile_summary(const nlohmann::ordered_json& facts);

// Numbers as people read them: "3.21 GB/s".
std::string readable_rate(double per_second, const char* unit);
// "+3.1 %"
std::string readable_percent(double fraction);

// Cells of tables. `compared` has seconds under `measured` and `predicted`.
std::string seconds_of(const nlohmann::ordered_json& compared, const char* which);
// Of the prediction, relative; empty where nothing was measured.
std::string error_of(const nlohmann::ordered_json& compared);
// How to read the errors of work, in sentences.
std::string errors_explained(const nlohmann::ordered_json& facts);
// Stalls of a smaller part of a step are told together.
constexpr double kStallShown = 0.001;
// Bytes: the most of a row of `occupancy`.
uint64_t most_at_once(const nlohmann::ordered_json& tier);
// Empty for none.
std::string bytes_of(const nlohmann::ordered_json& bytes);

}  // namespace sluice
