// A gpt-oss directory in MXFP4 and the command: every verb reads it, within the least budgets, and what is
// exported is bf16.
#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/files/safetensors.h"
#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class Mxfp4Cli : public Cli {
 protected:
  std::string facts(const std::string& from) const {
    const CommandResult result =
        run({"eval", "--from", from, "--data", kFixtures + "tokens.bin", "--precision", "fp32", "--seq", "37",
             "--batch", "4", "--val-batches", "2", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  double loss(const std::string& from) const { return nlohmann::json::parse(facts(from))["val_loss"]; }
  std::string said(const std::string& from) const {
    const CommandResult result =
        run({"generate", "--from", from, "--tokenizer", kFixtures + "fifty_chats/model", "--prompt",
             "Where does Ada", "--max-tokens", "8"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  const std::string model = kFixtures + "mxfp4/model";
};

TEST_F(Mxfp4Cli, TheLossIsThatOfTransformers) {
  const auto expected = nlohmann::json::parse(read_text_file(kFixtures + "mxfp4/expected.json", 1 << 16));
  const double wanted = expected["loss"];
  EXPECT_NEAR(loss(model), wanted, 1e-5 * wanted);
}

// At a learning rate of 1e-30 weights stay as they are. So the export gives the directory's loss and answers.
TEST_F(Mxfp4Cli, ARunReadsItWithinTheLeastBudgetsAndExportsBf16) {
  const Words same{"--model", model, "--batch", "2", "--seq", "16", "--nvme-dir", directory / ""};
  const CommandResult refused = run(Words{"plan", "--gpu-mem", "16KiB", "--no-advice"} + same);
  const std::string refusal = refused.err, least = "The least together: ";
  ASSERT_NE(refusal.find(least), std::string::npos) << refusal;
  const size_t begin = refusal.find(least) + least.size();
  std::istringstream words(refusal.substr(begin, refusal.find(" (", begin) - begin));
  const Words budgets{std::istream_iterator<std::string>(words), {}};
  ASSERT_EQ(budgets.size(), 6u);
  const CommandResult trained = run(Words{"train", "--data", kFixtures + "tokens.bin", "--steps", "2", "--lr",
                                          "1e-30", "--out", directory / "run"} +
                                    same + budgets);
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(run({"export", "--from", directory / "run", "--to", directory / "exported"}).code, 0);
  const SafetensorsFile file = SafetensorsFile::open(directory / "exported/model.safetensors");
  const SafetensorsTensor* const down = file.find("model.layers.1.mlp.experts.down_proj");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->type, SafetensorsType::bf16);
  EXPECT_EQ(read_text_file(directory / "exported/config.json", 1 << 16).find("quantization_config"),
            std::string::npos);
  const double of_model = loss(model);
  EXPECT_NEAR(loss(directory / "exported"), of_model, 1e-6 * of_model);
  EXPECT_EQ(said(directory / "exported"), said(model));
}

}  // namespace
}  // namespace sluice
