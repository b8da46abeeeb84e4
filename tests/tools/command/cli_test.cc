// The `sluice` command as a user meets it before a run: help, and refusals with their exit codes and
// remedies.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/manifest.h"
#include "tests/support/cli_support.h"
#include "tools/command/verbs.h"

namespace sluice {
namespace {

TEST_F(Cli, HelpOfEveryVerb) {
  const CommandResult program = run({"--help"});
  EXPECT_EQ(program.code, 0);
  EXPECT_EQ(program.err, "");
  for (const VerbRow& row : verb_table()) {
    const std::string verb = verb_name(row.verb);
    EXPECT_NE(program.out.find(verb), std::string::npos) << verb;
    const CommandResult help = run({verb, "--help"});
    EXPECT_EQ(help.code, 0) << verb;
    EXPECT_NE(help.out.find("sluice " + verb), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "") << verb;
  }
  for (const std::string option : {"--host-mem", "--nvme-dir", "--resume", "--clip", "--checkpoint-every"})
    EXPECT_NE(run({"train", "--help"}).out.find(option), std::string::npos) << option;
}

TEST_F(Cli, MistypedCommands) {
  expect_refusal({}, 2, {"verb", "--help"});
  expect_refusal({"trian"}, 2, {"trian", "train"});
  expect_refused_training({"--clpi", "1"}, 2, {"--clpi", "--clip"});
  expect_refused_training({"--precision", "fp8"}, 2, {"fp8", "bf16"});
  for (const char* rate : {"-1", "0", "nan", "inf", "fast"})
    expect_refusal({"train", "--model", kTiny, "--data", text, "--out", directory / "refused", "--lr", rate},
                   2, {"--lr"});
  for (const char* size :
       {"-1", "-5GiB", "12parsecs", "99999999999999999999GiB", "1e400", "GiB", "0x10", "101%", ""})
    expect_refusal(train("refused", 2, {std::string("--host-mem=") + size}), 2, {"host-mem"});
  expect_refused_training({"--micro-batch", "3"}, 2, {"batch"});
  expect_refused_training({"--threads", "0"}, 2, {"--threads"});
  expect_refused_training({"--seq", "64"}, 2, {"--seq", "32"});
  expect_refused_training({"--warmup", "-3"}, 2, {"--warmup"});
  expect_refusal({"train", "--model", "gpt2-xxl", "--data", text, "--out", directory / "refused"}, 2,
                 {"gpt2-xxl", "gpt2-xl"});
  expect_refusal({"plan", "--model", directory.path()}, 2, {"no config.json", "export"});
  expect_refusal(
      {"train", "--model", "gpt2:layers=2,widht=32", "--data", text, "--out", directory / "refused"}, 2,
      {"widht", "width"});
  expect_refusal({"train", "--model", kTiny, "--out", directory / "refused"}, 2, {"--data"});
  expect_refusal({"train", "--model", kTiny, "--data", text}, 2, {"--out"});
}

TEST_F(Cli, BadMachineDescriptions) {
  const std::string file = directory / "machine.json";
  expect_refused_training({"--machine", directory / "nowhere"}, 2, {"nowhere", "cpu-2core"});
  expect_refused_training({"--machine", text}, 5, {"train.txt", "line 1 is not valid JSON"});
  for (const char* other : {"/dev/null", "/dev/zero", "/"})
    expect_refused_training({"--machine", other}, 5, {other, "not a regular file"});
  const auto refuse = [&](const std::string& json, const Words& parts) {
    write_bytes(file, json);
    expect_refused_training({"--machine", file}, 5, parts + Words{"machine.json"});
  };
  refuse("", {"it is empty"});
  refuse("{\"format\":\n", {"ends in the middle"});
  refuse("{\"format\": \"sluice-machine-1\",\n \"name\": }", {"line 2 is not valid JSON"});
  refuse("{\"format\": 1e999}", {"too large"});
}

TEST_F(Cli, SpecialFilesAsConfigurations) {
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  for (const char* option : {"--config", "--model", "--machine"})
    for (const std::string& other : {directory / "pipe", std::string("/dev/zero")})
      expect_refusal(option == std::string("--model") ? Words{"plan", option, other}
                                                      : Words{"plan", "--model", kTiny, option, other},
                     5, {other, "not a regular file"});
  expect_refusal({"plan", "--config", directory.path()}, 5, {"not a regular file"});
  expect_refusal({"plan", "--model", "nowhere.json"}, 2, {"nowhere.json", "No such file"});
  expect_refusal({"plan", "--model", "nowhere/model"}, 2,
                 {"There is no directory nowhere/model.", "hf download nowhere/model --local-dir model"});
  expect_refusal({"plan", "--model", "./nowhere"}, 2,
                 {"There is no directory ./nowhere.", "Check the path."});
}

// A step that would take minutes to plan is refused.
TEST_F(Cli, AbsurdSteps) {
  const Words model{"plan", "--model", kTiny, "--batch"};
  expect_refusal(model + Words{"1000000000"}, 2, {"--batch", "micro-batches"});
  expect_refusal(model + Words{"4096", "--micro-batch", "1"}, 2, {"--batch", "micro-batches"});
  expect_refusal({"plan", "--model", "gpt2:layers=2049"}, 2, {"layers", "2048"});
}

// The batch has two micro-batches.
TEST_F(Cli, WavesDivideTheMicroBatches) {
  expect_refused_training({"--waves", "4"}, 2, {"--waves 4", "2 micro-batches", "leave out --waves"});
  expect_refused_training({"--waves", "0"}, 2, {"--waves", "from 1"});
  expect_refused_training({"--waves", "2", "--gpus", "2", "--share-layers-until", "3"}, 2, {"--waves 2"});
  expect_refused_training({"--waves", "2", "--share-layers-until", "3"}, 2,
                          {"--waves above 1", "--share-layers-until", "Leave out one"});
  const Words model{"plan", "--no-advice", "--model", kTiny, "--host-mem", "1GiB"};
  expect_refusal(model + Words{"--batch", "4", "--waves", "3"}, 2, {"4 sequences"});
  const CommandResult swept = run(model + Words{"--batch", "4", "--waves", "4", "--sweep", "batch=2:4"});
  EXPECT_EQ(swept.code, 0);
  EXPECT_NE(swept.out.find("--waves 4 does not divide the 2 sequences of a step."), std::string::npos);
}

TEST_F(Cli, BenchRefusesBeforeItMeasures) {
  write_bytes(directory / "there.json", "{}");
  expect_refusal({"bench", "--device", "cpu", "--out", directory / "there.json"}, 2, {"exists already"});
  expect_refusal({"bench", "--device", "cpu", "--out", directory / "no/such.json"}, 4, {"no/such.json"});
  expect_refusal({"bench", "--device", "cpu", "--out", directory / std::string(252, 'n')}, 4,
                 {"File name too long", "shorter name"});
  const Words here{"bench", "--device", "cpu", "--out", directory / "new.json"};
  expect_refusal(here + Words{"--nvme-dir", directory / "none"}, 4, {"none", "does not exist"});
  expect_refusal(here + Words{"--host-mem", "1MiB"}, 3, {"host memory", "--host-mem"});
  EXPECT_FALSE(std::filesystem::exists(directory / "new.json"));
}

TEST_F(Cli, RanksThatCannotWork) {
  expect_refused_training({"--gpus", "3"}, 2, {"--micro-batch 2 on 3 ranks", "--batch 6"});
  for (const char* method : {"powersgd", "powersgd:0", "powersgd:65", "powersgd:4x", "topk:3", ""})
    expect_refused_training({"--compress", method}, 2, {"--compress"});
  expect_refused_training({"--compress", "powersgd:4", "--precision", "fp16"}, 2, {"fp16", "bf16"});
  expect_refused_training({"--compress", "powersgd:4", "--gpus", "2"}, 2, {"--zero 3", "--zero 1"});
}

TEST_F(Cli, AGpuThatIsNotThere) {
  expect_refused_training({"--device", "cuda:63"}, 4, {"--device c"});
  expect_refusal({"plan", "--model", "gpt2", "--device", "cpu:1"}, 2, {"cpu:1", "cuda:0"});
  const Words plan{"plan", "--model", "gpt2", "--device", "cuda:63"};
  const Words sized = plan + Words{"--gpu-mem", "8GiB", "--host-mem", "8GiB"};
  const CommandResult planned = run(sized);
  expect_refusal(plan, 4, {"--gpu-mem SIZE in bytes", "rtx-4090"});
  expect_refusal(plan + Words{"--gpu-mem", "80%"}, 4, {"--gpu-mem SIZE in bytes"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  for (const char* words :
       {"for the driver 1.00 GiB of --gpu-mem and 512 MiB of --host-mem, and 192 MiB of each",
        "Times are predicted at the rates of gpu-server, data sheets. These are another GPU's, unless yours "
        "is "
        "H100. Name a description of yours with --machine, or measure its machine with sluice bench.\n",
        "\n  on the cuda device, at the rates of gpu-server, data sheets\n",
        "outside the device arena: 1.21 GiB"})  // with 18 MiB of page tables for 8 GiB
    EXPECT_NE(planned.out.find(words), std::string::npos) << words << "\n" << planned.out;
  for (const char* machine : {"gpu-server", "t4"})  // whoever names a description knows whose rates it has
    EXPECT_EQ(run(sized + Words{"--machine", machine}).out.find("another GPU's"), std::string::npos)
        << machine;
}

// The note that says where a limit came from stands before the refusal.
TEST_F(Cli, NotesArePrintedBeforeARefusal) {
  const CommandResult refused =
      run({"plan", "--model", kTiny, "--host-mem", "1KiB", "--nvme-dir", directory.path()});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(refused.out.starts_with("--nvme-mem auto: ")) << refused.out;
  EXPECT_EQ(lines_of(refused.out).size(), 1u) << refused.out;
}

TEST_F(Cli, BadConfigs) {
  const std::string good = read_text_file(kFixtures + "gpt2/config.json", 1 << 20);
  const auto refuse = [&](const std::string& key, const nlohmann::json& value, const Words& parts) {
    auto config = nlohmann::json::parse(good);
    if (value.is_discarded())
      config.erase(key);
    else
      config[key] = value;
    write_bytes(directory / "config.json", config.dump());
    for (const char* verb : {"plan", "train"}) {
      Words arguments{verb, "--model", directory / "config.json", "--data", text};
      if (std::string(verb) == "train") arguments = arguments + Words{"--out", directory / "refused"};
      expect_refusal(arguments, 5, parts + Words{"config.json"});
    }
  };
  refuse("n_head", 7, {"7"});
  refuse("n_layer", 0, {"n_layer"});
  refuse("n_embd", int64_t{1} << 40, {"n_embd"});
  refuse("vocab_size", -3, {"vocab_size"});
  refuse("n_layer", "many", {"n_layer"});
  refuse("n_embd", nlohmann::json(nlohmann::json::value_t::discarded), {"n_embd"});
  write_bytes(directory / "config.json", good.substr(0, good.size() / 2));
  expect_refusal({"plan", "--model", directory / "config.json"}, 5, {"config.json"});
  write_bytes(directory / "config.json", "");
  expect_refusal({"plan", "--model", directory / "config.json"}, 5, {"config.json"});
}

// A safetensors file that claims a header of `claimed` bytes. It has `header` and `data` bytes of zeros.
std::string safetensors(const std::string& header, uint64_t claimed, size_t data) {
  std::string bytes(sizeof claimed, '\0');
  std::memcpy(bytes.data(), &claimed, sizeof claimed);
  return bytes + header + std::string(data, '\0');
}

TEST_F(Cli, BadWeights) {
  const std::string model = directory / "hf";
  std::filesystem::create_directory(model);
  std::filesystem::copy_file(kFixtures + "gpt2/config.json", model + "/config.json");
  const std::string file = model + "/model.safetensors";
  const std::string good = read_text_file(kFixtures + "gpt2/model.safetensors", 1 << 24);
  const auto refuse = [&](const std::string& bytes, const Words& parts) {
    std::filesystem::remove(file);
    write_bytes(file, bytes);
    expect_refusal({"train", "--model", model, "--data", kFixtures + "tokens.bin", "--seq", "37", "--out",
                    directory / "refused"},
                   5, parts);
    EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
  };
  refuse(good.substr(0, good.size() - 1), {"model.safetensors"});
  refuse(good.substr(0, 100), {"model.safetensors"});
  refuse("", {"model.safetensors"});
  refuse(safetensors("{}", uint64_t{1} << 60, 0), {"model.safetensors"});
  const std::string overlapping = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  refuse(safetensors(overlapping, overlapping.size(), 12), {"model.safetensors"});
  const std::string lying = R"({"a":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,8]}})";
  refuse(safetensors(lying, lying.size(), 8), {"model.safetensors"});
  const std::string stranger = R"({"stranger\u001b[2J":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  refuse(safetensors(stranger, stranger.size(), 8), {"missing", "wte.weight", "h.0.ln_1.weight", "stranger"});
  const CommandResult escaped = run({"train", "--model", model, "--data", kFixtures + "tokens.bin", "--seq",
                                     "37", "--out", directory / "x"});
  EXPECT_EQ(escaped.err.find('\x1b'), std::string::npos);  // names from files are escaped
}

TEST_F(Cli, BadData) {
  const Words model{"train", "--model", "gpt2:layers=1,width=32,heads=2,vocab=300,context=32"};
  const auto data = [&](const std::string& name, const std::string& bytes) {
    write_bytes(directory / name, bytes);
    return Words{"--data", directory / name, "--out", directory / ("run of " + name)};
  };
  expect_refusal(model + Words{"--data", text, "--out", directory / "refused"}, 5, {"train.txt", "256"});
  std::string tokens(2000, '\1');  // 0x0101 = 257
  tokens[1001] = '\2';             // token 500 is 0x0201 = 513
  expect_refusal(model + data("range.bin", tokens), 5, {"range.bin", "513", "500"});
  expect_refusal(model + data("empty.bin", ""), 5, {"empty.bin"});
  expect_refusal(model + data("odd.bin", "abc"), 5, {"odd.bin"});
  expect_refusal(model + data("short.bin", std::string(2 * 32, '\0')), 5, {"short.bin"});
  expect_refusal(model + Words{"--data", directory / "nowhere.bin", "--out", directory / "refused"}, 2,
                 {"nowhere.bin"});
  std::string shard(1024 + 200, '\0');  // an llm.c header that promises more than there is
  const int32_t header[3] = {20240520, 1, 1000};
  std::memcpy(shard.data(), header, sizeof header);
  expect_refusal(model + data("shard.bin", shard), 5, {"shard.bin"});
  expect_refused_training({"--val-data", validation, "--val-batches", "100"}, 2, {"val"});
}

TEST_F(Cli, BadScratchDirectories) {
  expect_refused_training({"--nvme-dir", directory / "nowhere"}, 4, {"nowhere"});
  expect_refused_training({"--nvme-dir", text}, 4, {"train.txt"});
  expect_refused_training({"--nvme-dir", directory.path(), "--nvme-mem", "1000TiB"}, 4, {"nvme-mem"});
  if (is_memory("/dev/shm"))
    expect_refused_training({"--nvme-dir", "/dev/shm", "--host-mem", "67MiB", "--nvme-mem", "64MiB"}, 4,
                            {"/dev/shm", "in memory"});
}

TEST_F(Cli, AReadOnlyScratchDirectory) {
  if (geteuid() == 0) GTEST_SKIP() << "read-only directories do not stop root";
  std::filesystem::create_directory(directory / "closed");
  std::filesystem::permissions(directory / "closed",
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  expect_refused_training({"--nvme-dir", directory / "closed", "--host-mem", "67MiB"}, 4, {"closed"});
}

TEST_F(Cli, InfeasibleBudgetsNameOnesToPaste) {
  const Words small{"--gpu-mem", "100KiB", "--host-mem", "67MiB", "--nvme-dir", directory.path()};
  const CommandResult refused = run(train("first", 1, small));
  EXPECT_EQ(refused.code, 3);
  const size_t begin = refused.err.find("--gpu-mem", refused.err.find("together"));
  ASSERT_NE(begin, std::string::npos) << refused.err;
  Words pasted;
  std::string word;
  for (const char c : refused.err.substr(begin, refused.err.find('(', begin) - begin)) {
    if (c != ' ') {
      word += c;
    } else {
      pasted.push_back(word);
      word.clear();
    }
  }
  ASSERT_EQ(pasted.size(), 6u) << refused.err;  // --gpu-mem N --host-mem N --nvme-mem N
  const CommandResult mended = run(train("second", 1, pasted + Words{"--nvme-dir", directory.path()}));
  EXPECT_EQ(mended.code, 0) << mended.err;
}

// The smallest budget of a tier holds with the other budgets as given. The reason names the same bytes.
TEST_F(Cli, InfeasibleBudgetsAgreeWithTheirRemedy) {
  const CommandResult facts =
      run({"plan", "--model", kTiny, "--gpu-mem", "4MiB", "--host-mem", "66MiB", "--threads", "2", "--json"});
  EXPECT_EQ(facts.code, 3) << facts.err;
  const auto json = nlohmann::json::parse(facts.out);
  const uint64_t host = json["smallest_budgets"]["host"];
  EXPECT_LT(host, json["smallest_budgets"]["together"]["host"].get<uint64_t>());
  const std::string arena = std::to_string(host - json["runtime_reserve"].get<uint64_t>());
  const std::string reason = json["reason"];
  EXPECT_NE(reason.find("the host arena needs "), std::string::npos) << reason;
  EXPECT_NE(reason.find(" (" + arena + " bytes; largest task: backward of h.1)"), std::string::npos)
      << reason;
}

TEST_F(Cli, ALimitBelowTheReserveIsInfeasibleToo) {
  const CommandResult facts =
      run({"plan", "--model", kTiny, "--host-mem", "1KiB", "--threads", "2", "--json"});
  EXPECT_EQ(facts.code, 3) << facts.err;
  const auto json = nlohmann::json::parse(facts.out);
  const uint64_t least = json["smallest_budgets"]["host"];
  EXPECT_GT(least, json["runtime_reserve"].get<uint64_t>());
  const std::string named = std::to_string(least);
  expect_refused_training({"--host-mem", "1MiB"}, 3, {"--host-mem"});
  const Words model{"plan", "--model", kTiny, "--threads", "2", "--host-mem"};
  EXPECT_EQ(run(model + Words{named}).code, 0);
  EXPECT_EQ(
      run(model + Words{std::to_string(least - (least - json["runtime_reserve"].get<uint64_t>()) / 100 - 1)})
          .code,
      3);
}

// 64 sequences of 1024 tokens have 1.2 GiB of activations between layers, about as much as the host arena. So
// the activations stay in device memory, as they do with more host memory. If they do not fit there either,
// the plan is refused, and the budget that the refusal names works.
TEST_F(Cli, ActivationsThatDramDoesNotHoldLiveInTheDevice) {
  const auto plan = [&](const std::string& device, const std::string& host,
                        const std::string& placement = "auto") {
    const Words model{"--model", "gpt2", "--batch", "64", "--micro-batch", "8"};
    const Words machine{"--device", "cuda", "--machine", "gpu-server", "--threads", "16"};
    const Words memory{"--gpu-mem", device, "--host-mem", host, "--placement", placement};
    return nlohmann::json::parse(run(Words{"plan", "--json"} + model + machine + memory).out);
  };
  for (const char* placement : {"highest", "auto"}) {
    const auto little = plan("74GiB", "2GiB", placement), plenty = plan("74GiB", "80GiB", placement);
    EXPECT_EQ(little["feasible"], true) << little;
    const double slower = little["seconds_predicted"], faster = plenty["seconds_predicted"];
    if (placement == std::string("highest"))
      EXPECT_NEAR(slower, faster, 1e-9);  // the same plan
    else
      EXPECT_GE(slower, faster);  // host memory has room for optimizer state, too
    for (const auto* facts : {&little, &plenty}) {
      EXPECT_EQ((*facts)["homes"]["activations"]["host"], 0);
      EXPECT_GT((*facts)["homes"]["activations"]["device"].get<uint64_t>(),
                uint64_t{13} * 64 * 1024 * 768 * 2);
    }
  }

  const auto small = plan("4GiB", "1300MiB");
  EXPECT_EQ(small["feasible"], false);
  const uint64_t device = small["smallest_budgets"]["device"], host = small["smallest_budgets"]["host"];
  EXPECT_EQ(plan(std::to_string(device), "1300MiB")["feasible"], true) << device;
  EXPECT_EQ(plan(std::to_string(device - device / 100), "1300MiB")["feasible"], false) << device;
  EXPECT_EQ(plan("4GiB", std::to_string(host))["feasible"], true) << host;
  EXPECT_EQ(plan("4GiB", std::to_string(host - host / 100))["feasible"], false) << host;
}

// A drive that is too small to help does no harm.
TEST_F(Cli, ATinyDiskIsNotInTheWay) {
  const Words words{"plan", "--json",     "--model", kTiny,        "--batch",        "4",         "--gpu-mem",
                    "4MiB", "--host-mem", "80MiB",   "--nvme-dir", directory.path(), "--nvme-mem"};
  for (const char* disk : {"0", "1MiB", "64MiB"}) {
    const CommandResult plan = run(words + Words{disk});
    EXPECT_EQ(plan.code, 0) << disk << plan.out << plan.err;
  }
}

TEST_F(Cli, AResumeOfAnOlderVersionsRunSaysThatBitsMayDiffer) {
  ASSERT_EQ(run(train("run", 1)).code, 0);
  const std::string manifest = newest_checkpoint(directory / "run").value() + "/manifest.json";
  auto json = nlohmann::ordered_json::parse(read_text_file(manifest, 1 << 20));
  ASSERT_EQ(json["numerics"], kNumerics);
  json["numerics"] = kNumerics - 1;
  json.erase("checksum");
  write_bytes(manifest, sealed(json.dump()));
  const char* const note = "losses may differ in their last bits";
  const CommandResult older = run(train("run", 2, {"--resume", "auto"}));
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_NE(older.out.find(note), std::string::npos) << older.out;
  const CommandResult own = run(train("run", 3, {"--resume", "auto"}));
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(own.out.find(note), std::string::npos) << own.out;
}

}  // namespace
}  // namespace sluice
