// A check that reads all tokens while a run trains. It finds a token beyond the vocabulary, wherever it is,
// and ends when it is asked to.
#include "models/data/range_check.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

constexpr uint64_t kTokens = 3'000'000;

class RangeChecks : public FormatTest {
 protected:
  TokenData tokens(const std::string& name, std::optional<uint64_t> bad) const {
    std::string bytes(2 * kTokens, '\0');
    for (uint64_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(1 + i % 100);
    if (bad) bytes[2 * *bad + 1] = '\x7f';
    return TokenData::open({write_file(name, bytes)}, 256);
  }
};

// The exception names file and position. Data after the first of the list are checked, too.
TEST_F(RangeChecks, FindsTheTokenThatIsNone) {
  const TokenData good = tokens("good.bin", std::nullopt), bad = tokens("bad.bin", kTokens - 1);
  const TokenData* const all[] = {&good, &bad};
  const RangeCheck check(all);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!check.fault() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(check.fault());
  try {
    std::rethrow_exception(check.fault());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::malformed_file);
    EXPECT_NE(std::string(error.what()).find("bad.bin has token id 32"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("position 2999999"), std::string::npos) << error.what();
  }
}

TEST_F(RangeChecks, EndsAtOnce) {
  const TokenData good = tokens("good.bin", std::nullopt);
  const std::vector<const TokenData*> often(1000, &good);  // 6 GB to read
  const auto begin = std::chrono::steady_clock::now();
  { const RangeCheck check(often); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

}  // namespace
}  // namespace sluice
