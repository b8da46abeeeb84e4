// The figures that tests measure for the tables of docs/numbers.md: each is printed beside its limit after
// the last test, as benchmarks print theirs. The tests themselves still judge.
//
//   figures.at_most("fp32 loss, relative", difference, 1e-5);  // keeps the largest
//   figures.holds("faults that are caught", caught, planted);  // adds up; all must be caught
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice {

class Figures : public ::testing::Environment {
 public:
  static Figures& print_at_end() {
    auto* figures = new Figures;  // owned by googletest from here on
    ::testing::AddGlobalTestEnvironment(figures);
    return *figures;
  }

  void at_most(const std::string& what, double measured, double limit) {
    Row& row = row_of(what);
    ++row.cases;
    row.measured = std::max(row.measured, measured);
    row.limit = limit;
    row.met &= measured <= limit;  // false for NaN
  }
  void holds(const std::string& what, size_t good, size_t cases = 1) {
    Row& row = row_of(what);
    row.cases += cases;
    row.measured += static_cast<double>(good);
    row.limit = static_cast<double>(row.cases);
    row.bar = ">= 1";
    row.met &= good == cases;
  }

  void TearDown() override {
    if (rows_.empty()) return;
    size_t width = 4;
    for (const Row& row : rows_) width = std::max(width, row.what.size());
    fmt::print("{:<{}}  {:>6}  {:>11}  {:>6}  {:>6}  {:>5}\n", "what", width, "cases", "measured", "limit",
               "ratio", "bar");
    for (const Row& row : rows_)
      fmt::print("{:<{}}  {:>6}  {:>11.6g}  {:>6.6g}  {:>6.3f}  {:>5}  {}\n", row.what, width, row.cases,
                 row.measured, row.limit, row.measured / row.limit, row.bar, row.met ? "ok" : "short");
  }

 private:
  struct Row {
    std::string what;
    size_t cases = 0;
    double measured = 0, limit = 0;
    const char* bar = "<= 1";  // of measured / limit
    bool met = true;
  };

  Row& row_of(const std::string& what) {
    for (Row& row : rows_)
      if (row.what == what) return row;
    return rows_.emplace_back(Row{what});
  }

  std::vector<Row> rows_;
};

inline Figures& figures = Figures::print_at_end();

}  // namespace sluice
