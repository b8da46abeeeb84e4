// Adapters as a user meets them: from training over export and merging to evaluation, a base that has moved,
// and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/files/safetensors.h"
#include "models/weights/hf_weights.h"
#include "models/weights/peft.h"
#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class LoraCli : public Cli {
 protected:
  Words lora(const std::string& out, int64_t steps, const Words& more = {}) const {
    return Words{"train",
                 "--model",
                 kFixtures + "llama",
                 "--data",
                 kFixtures + "tokens.bin",
                 "--seq",
                 "37",
                 "--batch",
                 "4",
                 "--lr",
                 "1e-2",
                 "--precision",
                 "fp32",
                 "--out",
                 directory / out,
                 "--steps",
                 std::to_string(steps)} +
           more;
  }
  double loss_of(const Words& more) const {
    const CommandResult result =
        run(Words{"eval", "--data", kFixtures + "tokens.bin", "--seq", "37", "--precision", "fp32", "--batch",
                  "4", "--val-batches", "8", "--json"} +
            more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out)["val_loss"];
  }
  void copy_base(const std::string& to) const {
    std::filesystem::copy(kFixtures + "llama", directory / to, std::filesystem::copy_options::recursive);
  }
};

TEST_F(LoraCli, FromTrainingOverExportToEvaluation) {
  const CommandResult trained = run(lora("run", 6, {"--lora", "4"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("Adapters: new, by --seed 0. Base: " + kFixtures + "llama."), std::string::npos)
      << trained.out;
  EXPECT_NE(trained.out.find(" trained), "), std::string::npos) << trained.out;
  const std::string out = directory / "run";
  ASSERT_EQ(run({"export", "--from", out, "--to", directory / "adapters"}).code, 0);
  ASSERT_EQ(run({"export", "--from", out, "--to", directory / "merged", "--merge"}).code, 0);
  const double base = loss_of({"--from", kFixtures + "llama"}), tuned = loss_of({"--from", out});
  EXPECT_LT(tuned, base - 0.1);
  // The losses differ by rounding: fp32 sums W x + s B (A x) in another order than (W + s B A) x.
  EXPECT_NEAR(loss_of({"--from", directory / "merged"}), tuned, 1e-5);

  // A run of no steps from the exported adapters has the same weights.
  const CommandResult again = run(lora("again", 0, {"--lora-from", directory / "adapters"}));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(loss_of({"--from", directory / "again"}), tuned);
  std::vector<std::string> notes;
  const Adapters stored = read_adapter_config(directory / "adapters", notes);
  EXPECT_EQ(stored.rank, 4);
  EXPECT_EQ(stored.alpha, 4);
  EXPECT_EQ(stored.targets.size(), 7u);
}

TEST_F(LoraCli, ABaseThatHasMovedIsNamed) {
  copy_base("base");
  const std::string out = directory / "run", checkpoint = out + "/checkpoints/step-000000002";
  ASSERT_EQ(run(lora("run", 2, {"--model", directory / "base", "--lora", "2"})).code, 2);  // twice --model
  Words words = lora("run", 2, {"--lora", "2"});
  words[2] = directory / "base";
  ASSERT_EQ(run(words).code, 0);
  const double loss = loss_of({"--from", out});
  std::filesystem::rename(directory / "base", directory / "moved");
  const Words resumed{"train", "--out", out, "--resume", "auto", "--steps", "4"};
  const Words found{"--base", directory / "moved"};
  for (const Words& verb : {resumed, Words{"export", "--from", out, "--to", directory / "merged", "--merge"},
                            Words{"eval", "--from", out, "--data", kFixtures + "tokens.bin"}})
    expect_refusal(verb, 2, {"base is no directory", "--base DIR"});
  ASSERT_EQ(run({"export", "--from", out, "--to", directory / "adapters"}).code, 0);
  EXPECT_EQ(loss_of(Words{"--from", out} + found), loss);
  const CommandResult went_on = run(resumed + found);
  ASSERT_EQ(went_on.code, 0) << went_on.err;
  EXPECT_NE(went_on.out.find("Adapters: of checkpoint " + checkpoint), std::string::npos) << went_on.out;
  ASSERT_EQ(run(Words{"train", "--out", out, "--resume", "auto", "--steps", "5"}).code,
            0);  // the run knows the new place
  // Another model of the same shapes.
  std::filesystem::remove_all(directory / "moved");
  copy_base("moved");
  std::fstream weights(directory / "moved/model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-1, std::ios::end);
  weights.put('\x3f');
  weights.close();
  expect_refusal(Words{"train", "--out", out, "--resume", "auto", "--steps", "6"}, 5,
                 {"is not the base of the run", "--base DIR"});
}

// PEFT finds a module by its whole name. In the larger model, the same module has another name.
TEST_F(LoraCli, AdaptersHaveTheNamesOfTheBasesModules) {
  const auto name_of = [&](const std::string& base) {
    Words words = lora("run." + base, 1, {"--lora", "2", "--lora-targets", "q_proj"});
    words[2] = directory / base;
    EXPECT_EQ(run(words).code, 0);
    EXPECT_EQ(run({"export", "--from", directory / ("run." + base), "--to", directory / ("to." + base)}).code,
              0);
    const auto file = SafetensorsFile::open(directory / ("to." + base + "/adapter_model.safetensors"));
    return file.tensors().front().name;
  };
  for (const char* base : {"text", "larger"})
    std::filesystem::copy(kFixtures + "gemma3_text", directory / base,
                          std::filesystem::copy_options::recursive);
  const std::string config = directory / "larger/config.json";
  const auto part = nlohmann::json::parse(read_text_file(config, 1 << 20));
  std::ofstream(config) << nlohmann::json{{"model_type", "gemma3"}, {"text_config", part}};
  EXPECT_EQ(name_of("text"), "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(name_of("larger"),
            "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight");
  // The exported adapters are read back.
  for (const std::string base : {"text", "larger"}) {
    Words words = lora("again." + base, 0, {"--lora-from", directory / ("to." + base)});
    words[2] = directory / base;
    EXPECT_EQ(run(words).code, 0);
  }
}

TEST_F(LoraCli, WhatMakesNoSenseIsRefused) {
  const auto refused = [&](const Words& more, const Words& parts) {
    expect_refusal(lora("no", 2, more), 2, parts);
  };
  refused({"--lora", "65"}, {"--lora 65 is more than the rank of model.layers.0.", "Give --lora 64 or less"});
  refused({"--lora", "2", "--lora-targets", "q_proj,query"},
          {"query", "down_proj, ", "q_proj", "all-linear"});
  refused({"--lora", "2", "--lora-targets", "lm_head"}, {"lm_head"});
  refused({"--lora", "2", "--from-scratch"}, {"--lora and --from-scratch"});
  refused({"--lora", "2", "--share-layers-until", "1"}, {"--share-layers-until"});
  refused({"--lora", "9999"}, {"--lora is 9999"});
  refused({"--lora-alpha", "2"}, {"--lora-alpha needs --lora"});
  refused({"--rslora"}, {"--rslora needs --lora"});
  refused({"--base", directory / ""}, {"--base is for runs with adapters"});
  refused({"--lora-from", directory / ""}, {"has no adapter_config.json"});
  Words of_adapters = lora("no", 2);
  of_adapters[2] = kFixtures + "lora/llama";
  expect_refusal(of_adapters, 2, {"holds adapters, not a model", "--lora-from"});
  expect_refusal({"generate", "--from", kFixtures + "lora/llama", "--chat"}, 2,
                 {"holds adapters, not a model", "sluice export --merge"});
  expect_refusal({"plan", "--model", "Org/Model-8B"}, 2,
                 {"There is no directory Org/Model-8B.", "hf download Org/Model-8B --local-dir Model-8B"});
  expect_refusal({"plan", "--model", "./Org/Model-8B"}, 2, {"There is no directory", "Check the path."});
  refused({"--lora", "2", "--lora-from", kFixtures + "lora/llama"}, {"--lora differs from the adapters"});
  expect_refusal(train("no", 2, {"--lora", "2"}), 2, {"has no weights for --lora"});
  // These are adapters of another model.
  expect_refusal(lora("no", 2, {"--lora-from", kFixtures + "lora/gpt2"}), 2, {"c_attn", "q_proj"});
  expect_refusal(lora("no", 2, {"--lora-from", kFixtures + "lora/granite"}), 5,
                 {"do not fit the model", "of another shape", "--model on which"});
  ASSERT_EQ(run(lora("all", 1)).code, 0);
  expect_refusal({"export", "--from", directory / "all", "--to", directory / "to", "--merge"}, 2,
                 {"has no adapters"});
  ASSERT_EQ(run(lora("run", 1, {"--lora", "2"})).code, 0);
  expect_refusal({"export", "--from", directory / "run", "--to", directory / "to", "--shards", "2"}, 2,
                 {"--merge"});
  expect_refusal({"train", "--out", directory / "run", "--resume", "auto", "--steps", "2", "--lora", "3"}, 2,
                 {"--lora 3 differs from the run's own"});
}

// Keys of PEFT that change the mathematics.
TEST_F(LoraCli, WhatPeftComputesAndSluiceDoesNotIsRefusedByName) {
  const std::string from = directory / "from";
  std::filesystem::copy(kFixtures + "lora/llama", from, std::filesystem::copy_options::recursive);
  const auto config = nlohmann::json::parse(read_text_file(from + "/adapter_config.json", 1 << 20));
  for (const auto& [key, value] : std::map<std::string, nlohmann::json>{{"rank_pattern", {{"q_proj", 2}}},
                                                                        {"alpha_pattern", {{"q_proj", 2}}},
                                                                        {"use_dora", true},
                                                                        {"modules_to_save", {"lm_head"}},
                                                                        {"bias", "all"},
                                                                        {"init_lora_weights", "pissa"},
                                                                        {"peft_type", "IA3"},
                                                                        {"use_something_new", true},
                                                                        {"lora_alpha", -1},
                                                                        {"lora_bias", true}}) {
    nlohmann::json changed = config;
    changed[key] = value;
    std::ofstream(from + "/adapter_config.json") << changed.dump();
    expect_refusal(lora("no", 2, {"--lora-from", from}), 5, {key});
  }
  nlohmann::json dropout = config;
  dropout["lora_dropout"] = 0.1;
  std::ofstream(from + "/adapter_config.json") << dropout.dump();
  const CommandResult result = run(lora("run", 1, {"--lora-from", from}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("dropout is not applied (lora_dropout 0.1)"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace sluice
