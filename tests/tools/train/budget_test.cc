// The process stays within what it was given: the command at the smallest budgets that its own plan names,
// and at larger ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/cli_support.h"
#include "tests/support/figures.h"

namespace sluice {
namespace {

class CommandBudgets : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers keep shadow memory of their own";
#endif
    write_bytes(directory / "train.txt", sample_text(20000));
  }
  const DriveDirectory directory;
};

// Models of 14 and 28 million parameters, whose training state is 200 and 400 MB. The library that computes
// products takes more memory for products of experts.
class CommandBudgetsOf : public CommandBudgets, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Models, CommandBudgetsOf,
    ::testing::Values("gpt2:layers=7,width=400,heads=8,vocab=256,context=128",
                      "mixtral:layers=4,width=256,heads=8,kv_heads=4,ffn=1024,vocab=256,context=128"));

// The command with the least limits that its own plan names, and with larger ones.
TEST_P(CommandBudgetsOf, TheProcessStaysWithinHostMem) {
  const std::vector<std::string> model{"--model",       GetParam(),
                                       "--batch",       "4",
                                       "--seq",         "128",
                                       "--data",        directory / "train.txt",
                                       "--nvme-dir",    directory.path(),
                                       "--threads",     "2",
                                       "--micro-batch", "2"};
  const CommandResult none = sluice_command(
      directory,
      std::vector<std::string>{"plan", "--json", "--gpu-mem", "1MiB", "--host-mem", "70MiB"} + model);
  ASSERT_EQ(none.code, 3) << none.err;
  const auto least = nlohmann::json::parse(none.out)["smallest_budgets"]["together"];
  const uint64_t device = least["device"], host = least["host"], nvme = least["nvme"];
  struct Limits {
    uint64_t device, host, nvme;
  };
  const Limits all[] = {{device, host, nvme}, {0, host + device + (100u << 20), 4 * nvme}};
  int number = 0;
  for (const Limits& limits : all) {
    const std::string out = directory / ("run" + std::to_string(++number));
    std::vector<std::string> arguments{"train",
                                       "--steps",
                                       "2",
                                       "--out",
                                       out,
                                       "--host-mem",
                                       std::to_string(limits.host),
                                       "--nvme-mem",
                                       std::to_string(limits.nvme)};
    if (limits.device)
      arguments = arguments + std::vector<std::string>{"--gpu-mem", std::to_string(limits.device)};
    const CommandResult run = sluice_command(directory, arguments + model);
    ASSERT_EQ(run.code, 0) << run.out << run.err;
    const auto lines = lines_of(read_text_file(out + "/metrics.jsonl", 1 << 20));
    ASSERT_EQ(lines.size(), 2u);
    const auto last = nlohmann::json::parse(lines.back());
    const uint64_t device_arena = limits.device ? last["peak_bytes"]["device"].get<uint64_t>() : 0;
    const uint64_t allowed = limits.host + device_arena;
    EXPECT_LE(last["process_peak_bytes"].get<uint64_t>(), allowed);
    EXPECT_LE(run.peak_bytes, allowed) << "at the process's end, checkpoint included";
    figures.at_most("process's peak / (--host-mem + device arena)",
                    static_cast<double>(run.peak_bytes) / static_cast<double>(allowed), 1);
    EXPECT_GT(run.peak_bytes, last["peak_bytes"]["host"].get<uint64_t>() / 2);
  }
}

// The least --host-mem that a refusal of `plan` names for these options.
uint64_t least_host(const DriveDirectory& directory, const std::vector<std::string>& options) {
  const CommandResult none =
      sluice_command(directory, std::vector<std::string>{"plan", "--json", "--host-mem", "1MiB"} + options);
  EXPECT_EQ(none.code, 3) << none.err;
  const auto least = nlohmann::json::parse(none.out)["smallest_budgets"];
  return least["host"].is_null() ? least["together"]["host"].get<uint64_t>() : least["host"].get<uint64_t>();
}

// Tiny models in many micro-batches: memory holds mostly the program, with up to 15,000 tasks and several
// times as many transfers. Layers, micro-batches and tiers by chance.
TEST_F(CommandBudgets, TheProgramIsWithinHostMem) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 8; ++round) {
    const uint64_t slices = 32 + random() % 225, layers = 1 + random() % (4000 / slices);
    std::vector<std::string> options{
        "--model",   fmt::format("gpt2:layers={},width=8,heads=1,vocab=256,context=8", layers),
        "--data",    directory / "train.txt",
        "--threads", "2",
        "--batch",   std::to_string(slices),
        "--device",  "cpu"};
    if (random() % 4 > 0) options = options + std::vector<std::string>{"--micro-batch", "1"};
    const bool device = round % 2 == 0, nvme = round % 4 < 2;
    if (device) options = options + std::vector<std::string>{"--gpu-mem", "2MiB"};
    if (nvme) options = options + std::vector<std::string>{"--nvme-dir", directory.path()};
    const uint64_t host = least_host(directory, options);
    SCOPED_TRACE(fmt::format("{} layers, {} sequences{}{}, --host-mem {}", layers, slices,
                             device ? ", device" : "", nvme ? ", nvme" : "", host));
    const auto with = [&](const std::vector<std::string>& first, uint64_t bytes) {
      return sluice_command(directory,
                            first + options + std::vector<std::string>{"--host-mem", std::to_string(bytes)});
    };
    EXPECT_EQ(with({"plan"}, host - 1).code, 3);
    const std::string out = directory / ("run" + std::to_string(round));
    const CommandResult run = with({"train", "--steps", "2", "--out", out}, host);
    ASSERT_EQ(run.code, 0) << run.out << run.err;
    const uint64_t allowed = host + (device ? 2u << 20 : 0);
    EXPECT_LE(run.peak_bytes, allowed);
    figures.at_most("process's peak / (--host-mem + device arena)",
                    static_cast<double>(run.peak_bytes) / static_cast<double>(allowed), 1);
  }
}

// A header of 11 MB with 200,000 names takes 100 MB of memory: refused before it is read, or within a limit
// that has room for it.
TEST_F(CommandBudgets, TablesOfWeightsAreWithinHostMem) {
  const std::string model = directory / "model";
  std::filesystem::create_directory(model);
  write_bytes(
      model + "/config.json",
      R"({"model_type":"gpt2","n_layer":1,"n_embd":32,"n_head":2,"vocab_size":256,"n_positions":64})");
  std::string header = "{";
  for (int n = 0; n < 200'000; ++n)
    header += fmt::format(R"({}"{:05x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", n ? "," : "", n);
  header += "}";
  const uint64_t length = header.size();
  write_bytes(model + "/model.safetensors",
              std::string(reinterpret_cast<const char*>(&length), sizeof length) + header);
  const std::vector<std::string> options{"--model", model, "--data", directory / "train.txt", "--batch", "1"};
  const auto train_with = [&](uint64_t host) {
    return sluice_command(directory, std::vector<std::string>{"train", "--out", directory / "run", "--steps",
                                                              "1", "--host-mem", std::to_string(host)} +
                                         options);
  };
  const CommandResult refused = train_with(80u << 20);
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_LE(refused.peak_bytes, 80u << 20);
  const uint64_t host = least_host(directory, options);
  const CommandResult read = train_with(host);
  EXPECT_EQ(read.code, 5) << read.err;
  EXPECT_NE(read.err.find("200000 unknown"), std::string::npos) << read.err;
  EXPECT_LE(read.peak_bytes, host);
}

}  // namespace
}  // namespace sluice
