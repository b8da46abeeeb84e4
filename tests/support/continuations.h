// How transformers goes on with prompts (tools/fixtures/make_continuations.py), to compare answers with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/file.h"
#include "tests/support/generation_support.h"

namespace sluice {

inline const std::string kContinuationFolder = "tests/fixtures/";

constexpr size_t kLogitStep = 7;  // LOGIT_STEP of the script

inline std::string continuations_text(const std::string& fixture) {
  return read_text_file(kContinuationFolder + fixture + "/continuations.json", 1 << 20);
}

struct Continuations {
  struct One {
    std::vector<uint32_t> tokens, answer;
    std::vector<double> first_logits, last_logits;  // of every kLogitStep-th id
  };
  std::vector<One> all;

  // `file`: continuations_text(), parsed.
  template <typename Json>
  explicit Continuations(const Json& file) {
    for (const auto& one : file["prompts"])
      all.push_back({one["tokens"], one["answer"], one["first_logits"], one["last_logits"]});
  }

  std::vector<std::vector<uint32_t>> prompts() const {
    std::vector<std::vector<uint32_t>> tokens;
    for (const One& one : all) tokens.push_back(one.tokens);
    return tokens;
  }

  // Expects `found` to be transformers' answers, up to the end of these answers or of the context.
  void expect(const std::vector<Answer>& found, int64_t context) const {
    ASSERT_EQ(found.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t most = std::min(all[i].answer.size(), static_cast<size_t>(context) - all[i].tokens.size());
      std::vector<uint32_t> tokens = found[i].tokens, wanted = all[i].answer;
      wanted.resize(most);
      if (tokens.size() > most) tokens.resize(most);
      EXPECT_EQ(tokens, wanted) << "prompt " << i << " of " << all[i].tokens.size() << " tokens";
    }
  }
};

// Names of the fixtures that have continuations.
inline std::vector<std::string> continuation_fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kContinuationFolder))
    if (std::filesystem::exists(entry.path() / "continuations.json"))
      names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// Phi-3's fixture has other frequencies for contexts above 32 tokens.
inline int64_t context_of(const std::string& fixture) { return fixture == "phi3" ? 32 : 50; }

// Found and wanted logits are fp32 sums in different orders. They differ by 1e-5 of the largest logit, and by
// a little more after several layers.
inline void expect_logits(const std::vector<float>& found, const std::vector<double>& wanted, double cap) {
  double largest = 0;
  for (const double logit : wanted) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double logit = static_cast<double>(found[i * kLogitStep]);
    EXPECT_NEAR(cap == 0 ? logit : cap * std::tanh(logit / cap), wanted[i], 3e-5 * largest) << i * kLogitStep;
  }
}

}  // namespace sluice
