// Sizes and durations: reading and printing.
#include "engine/run/options/size.h"

#include <gtest/gtest.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/base/units.h"

namespace sluice {
namespace {

uint64_t bytes_of(const std::string& text) {
  const Size size = parse_size(text, "host-mem");
  EXPECT_EQ(size.kind, Size::Kind::bytes) << text;
  return size.bytes;
}

TEST(ParseSize, ReadsUnitsOfBothKinds) {
  EXPECT_EQ(bytes_of("65536"), 65536u);
  EXPECT_EQ(bytes_of("0"), 0u);
  EXPECT_EQ(bytes_of("7B"), 7u);
  EXPECT_EQ(bytes_of("2KB"), 2000u);
  EXPECT_EQ(bytes_of("2KiB"), 2048u);
  EXPECT_EQ(bytes_of("800MB"), 800'000'000u);
  EXPECT_EQ(bytes_of("3MiB"), 3u * 1048576);
  EXPECT_EQ(bytes_of("3GB"), 3'000'000'000u);
  EXPECT_EQ(bytes_of("1.5GiB"), 1610612736u);
  EXPECT_EQ(bytes_of("2TB"), 2'000'000'000'000u);
  EXPECT_EQ(bytes_of("1TiB"), 1099511627776u);
  EXPECT_EQ(bytes_of("1.5 gib"), 1610612736u);
  EXPECT_EQ(bytes_of("1.5GIB"), 1610612736u);
}

TEST(ParseSize, FractionsAreExactAndRoundDown) {
  EXPECT_EQ(bytes_of("0.1KB"), 100u);
  EXPECT_EQ(bytes_of("0.001KiB"), 1u);        // 1.024
  EXPECT_EQ(bytes_of("0.3GiB"), 322122547u);  // 322122547.2
  EXPECT_EQ(bytes_of("8.000000000001TB"), 8'000'000'000'001u);
  EXPECT_EQ(bytes_of("0.99999999999999999999999999GB"), 999'999'999u);
}

TEST(ParseSize, ReachesTheLargestAndStopsThere) {
  EXPECT_EQ(bytes_of("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(bytes_of("16777215TiB"), 16777215u * (uint64_t{1} << 40));
  for (const char* text :
       {"18446744073709551616", "16777216TiB", "18446744073709.6MB", "99999999999999999999999GB"})
    EXPECT_THROW(parse_size(text, "host-mem"), Error) << text;
}

TEST(ParseSize, ReadsPercentAndAuto) {
  EXPECT_EQ(parse_size("auto", "gpu-mem"), Size{});
  const Size size = parse_size("12.5%", "gpu-mem");
  EXPECT_EQ(size.kind, Size::Kind::percent);
  EXPECT_EQ(size.percent, 12.5);
  EXPECT_EQ(parse_size("100%", "gpu-mem").percent, 100);
}

TEST(ParseSize, RejectsEverythingElseByName) {
  for (const char* text :
       {"",     " ",     "-1", "-1GiB",  "+1",  "1.5",   "1.5B",  ".5GiB",  "1.GiB",   "1e9",
        "0x10", "12abc", "4G", "4Gi",    "GiB", "1GiB ", " 1GiB", "1  GiB", "1,5GiB",  "nan",
        "inf",  "Auto",  "0%", "100.1%", "-5%", "%",     "1%%",   "1GiB\n", "1.5.5GiB"}) {
    try {
      parse_size(text, "nvme-mem");
      ADD_FAILURE() << "accepted `" << text << "`";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage) << text;
      EXPECT_NE(std::string(error.what()).find("--nvme-mem"), std::string::npos) << error.what();
      EXPECT_FALSE(error.remedy().empty());
    }
  }
}

TEST(ParseSize, SaysWhatIsWrong) {
  const auto message = [](const std::string& text) {
    try {
      parse_size(text, "host-mem");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message("-3GiB"), "`-3GiB` for --host-mem is negative.");
  EXPECT_EQ(message("16777216TiB"), "`16777216TiB` for --host-mem is more than 2^64 - 1 bytes.");
  EXPECT_EQ(message("12abc"), "`12abc` for --host-mem is not a size.");
  EXPECT_EQ(message("0"), "accepted");
  EXPECT_EQ(message("\x1b[2J"), "`\\x1b[2J` for --host-mem is not a size.");
}

TEST(FormatSize, HasThreeDigits) {
  const std::pair<uint64_t, const char*> cases[] = {
      {0, "0 B"},
      {999, "999 B"},
      {1000, "0.977 KiB"},
      {1024, "1.00 KiB"},
      {1536, "1.50 KiB"},
      {10 * 1024, "10.0 KiB"},
      {100 * 1024, "100 KiB"},
      {1023 * 1024, "0.999 MiB"},
      {1048575, "1.00 MiB"},
      {uint64_t{1610612736}, "1.50 GiB"},
      {uint64_t{22} << 40, "22.0 TiB"},
      {UINT64_MAX, "16.0 EiB"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(format_size(bytes), text) << bytes;
}

TEST(Size, SecondsForReading) {
  const std::pair<double, const char*> cases[] = {{0, "0 s"},          {1, "1 s"},
                                                  {12.345, "12.3 s"},  {999.4, "999 s"},
                                                  {999.6, "1000 s"},   {123456, "123456 s"},
                                                  {0.9996, "1 s"},     {0.0124, "12.4 ms"},
                                                  {0.0009996, "1 ms"}, {3.21e-6, "3.21 \u00b5s"},
                                                  {-0.5, "-500 ms"}};
  for (const auto& [seconds, text] : cases) EXPECT_EQ(readable_seconds(seconds), text) << seconds;
}

// What a run keeps in its manifest is read back as an option.
TEST(SizeText, FewBytesHaveAUnit) {
  EXPECT_EQ(size_text(parse_size("7B", "nvme-mem")), "7B");
  EXPECT_EQ(size_text(parse_size("0", "nvme-mem")), "0");
  EXPECT_EQ(size_text(parse_size("65537", "nvme-mem")), "65537");
}

}  // namespace
}  // namespace sluice
