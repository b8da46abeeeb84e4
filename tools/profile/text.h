// A profile's facts as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// profile.md: every section of the page but the drawings. Names from files are escaped.
std::string profile_markdown(const nlohmann::ordered_json& facts);

// Lines for the terminal: how long a step takes and what limits it; what it waits for most; what would be
// faster.
std::string profile_headline(const nlohmann::ordered_json& facts);
std::string profile_stalls(const nlohmann::ordered_json& facts);
std::string profile_changes(const nlohmann::ordered_json& facts);

// Numbers as people read them: "3.21 GB/s".
std::string readable_rate(double per_second, const char* unit);
// "+3.1 %"
std::string readable_percent(double fraction);

// Cells of tables. `compared` has seconds under `measured` and `predicted`.
std::string seconds_of(const nlohmann::ordered_json& compared, const char* which);
// The relative error of the prediction; empty where nothing was measured.
std::string error_of(const nlohmann::ordered_json& compared);
// Sentences that say how to read the errors in the table of kinds of work.
std::string errors_explained(const nlohmann::ordered_json& facts);
// Stalls that are a smaller part of a step than this are summed up in one line.
constexpr double kStallShown = 0.001;
// The most bytes at once in a row of `occupancy`.
uint64_t most_at_once(const nlohmann::ordered_json& tier);
// FLOP/s of work that computes, else B/s; empty where there is neither.
std::string rate_of(const nlohmann::ordered_json& work);
// When and where the run began, and the version of Sluice.
std::string origin_of(const nlohmann::ordered_json& facts);
// A text that says how budget, reserve and arena are related.
std::string budgets_explained();
// A size; empty for 0.
std::string bytes_of(const nlohmann::ordered_json& bytes);

}  // namespace sluice
