#include "tests/support/cli_support.h"

namespace sluice {

void Cli::SetUp() {
  write_bytes(text, sample_text(4000));
  write_bytes(validation, sample_text(1000, 9));
}

Words Cli::train(const std::string& out, int64_t steps, const Words& more) const {
  return Words{"train",
               "--model",
               kTiny,
               "--data",
               text,
               "--batch",
               "4",
               "--micro-batch",
               "2",
               "--steps",
               std::to_string(steps),
               "--out",
               directory / out,
               "--threads",
               "2",
               "--lr",
               "2e-3"} +
         more;
}

CommandResult Cli::run(const Words& arguments) const { return sluice_command(directory, arguments); }

void Cli::expect_refusal(const Words& arguments, int code, const Words& parts) const {
  const CommandResult result = run(arguments);
  std::string line;
  for (const std::string& word : arguments) line += word + " ";
  EXPECT_EQ(result.code, code) << line << "\n" << result.out << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.err.find(part), std::string::npos) << line << "\n" << result.err;
  EXPECT_TRUE(result.err.starts_with("sluice: ")) << line << "\n" << result.err;
  std::vector<std::string> lines = lines_of(result.err);
  std::erase_if(lines, [](const std::string& l) { return l.starts_with("sluice: planning"); });
  EXPECT_EQ(lines.size(), 2u) << line << "\n" << result.err;
}

void Cli::expect_refused_training(const Words& more, int code, const Words& parts) const {
  expect_refusal(train("refused", 2, more), code, parts);
  EXPECT_FALSE(std::filesystem::exists(directory / "refused/checkpoints"));
}

}  // namespace sluice
