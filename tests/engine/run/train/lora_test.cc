// Trainings of adapters are compared with PEFT's (tools/fixtures/lora.py). Also: what their checkpoints hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "models/weights/peft.h"
#include "tests/support/families.h"
#include "tests/support/figures.h"
#include "tests/support/fixtures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

const std::string kLoraFixtures = kFixtureFolder + "lora/";

std::vector<std::string> lora_fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kLoraFixtures))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json case_of(const std::string& name) {
  return nlohmann::json::parse(read_text_file(kLoraFixtures + name + "/expected.json", 1 << 20))["case"];
}

// Starts from the adapters in `from`, on the weights of fixture `base`.
void start_from(const std::string& base, const std::string& from, Options& o) {
  o.model.model = std::filesystem::absolute(kFixtureFolder + base).string();
  o.lora.from = from;
  std::vector<std::string> notes;
  settle_adapters(o.lora, notes, resolve_model(o.model).config);
  EXPECT_TRUE(notes.empty());
}

TestRun run_of(const std::string& name, const DriveDirectory& directory) {
  const nlohmann::json c = case_of(name);
  TestRun run;
  Options& o = run.options;
  start_from(name, kLoraFixtures + name, o);
  o.data.train = {kFixtureTokens};
  o.data.order = RowOrder::sequential;
  o.batch = {c["batch"], c["sequence"].get<int64_t>(), 2, c["steps"]};
  o.optimizer.learning_rate = c["learning_rate"];
  o.optimizer.min_learning_rate = c["min_learning_rate"].get<double>();
  o.optimizer.warmup.steps = c["warmup"];
  o.optimizer.weight_decay = c["weight_decay"];
  o.optimizer.clip = c["clip"];
  o.numbers.precision = DType::f32;
  o.run.out = directory / "out";
  return run;
}

// The contract's tolerance. Where gradients are near zero, AdamW's first steps have the size of the learning
// rate whatever the gradient: some factors may differ by more than losses do.
constexpr double kLossTolerance = 1e-5, kFactorTolerance = 1e-3;

TEST(Lora, TwentyStepsAgreeWithPeft) {
  EXPECT_EQ(lora_fixtures(), (std::vector<std::string>{"gpt2", "granite", "llama", "phi3", "qwen3"}));
  for (const std::string& name : lora_fixtures()) {
    SCOPED_TRACE(name);
    const DriveDirectory directory;
    const TestRun run = run_of(name, directory);
    const std::vector<StepMetrics> steps = train(run).steps;
    const std::vector<double> expected = case_of(name)["loss"];
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      const double difference = std::abs(steps[i].loss - expected[i]) / expected[i];
      EXPECT_LE(difference, kLossTolerance) << "step " << i + 1;
      figures.at_most("adapters, loss of a step against PEFT's, relative", difference, kLossTolerance);
    }
    const CheckpointReader checkpoint = CheckpointReader::open(*newest_checkpoint(run.options.run.out));
    const SafetensorsFile trained = SafetensorsFile::open(kLoraFixtures + name + "/trained.safetensors");
    const Family& family = *find_family(case_of(name)["model"].get<std::string>());
    size_t compared = 0;
    for (const SafetensorsTensor& tensor : trained.tensors()) {
      std::string parameter = without_peft_prefix(tensor.name);
      EXPECT_EQ(peft_name(family, parameter.substr(std::string(family.tensor_prefix).size()), false),
                tensor.name);
      parameter = parameter.substr(std::string(family.tensor_prefix).size());
      std::vector<float> theirs(tensor.elements()), ours(tensor.elements());
      trained.read_f32(tensor, 0, theirs.size(), theirs.data());
      checkpoint.read_weights(parameter, 0, ours.size(), ours.data());
      float largest = 0, most = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        largest = std::max(largest, std::abs(theirs[i]));
        most = std::max(most, std::abs(ours[i] - theirs[i]));
      }
      EXPECT_LE(most / largest, kFactorTolerance) << tensor.name;
      figures.at_most("adapters, trained factors against PEFT's, of the largest", most / largest,
                      kFactorTolerance);
      ++compared;
    }
    EXPECT_GT(compared, 0u);
  }
}

// PEFT chose modules by a pattern, by full names, or left some out (tools/fixtures/peft_targets.py).
TEST(Lora, ModulesThatPeftChoosesHaveTheirAdapters) {
  using Words = std::vector<std::string>;
  const std::map<std::string, Words> targets = {
      {"shared_expert",
       {"mlp.down_proj", "mlp.gate_proj", "mlp.shared_expert.down_proj", "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.up_proj", "mlp.up_proj"}},
      {"full_names", {"model.layers.0.self_attn.q_proj", "model.layers.2.mlp.up_proj"}},
      {"pattern", {"self_attn.q_proj", "self_attn.v_proj"}},
      {"excluded",
       {"layers.1.mlp.down_proj", "layers.1.mlp.gate_proj", "layers.1.mlp.up_proj",
        "layers.1.self_attn.k_proj", "layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj",
        "layers.2.mlp.down_proj", "layers.2.mlp.gate_proj", "layers.2.mlp.up_proj",
        "layers.2.self_attn.k_proj", "layers.2.self_attn.q_proj", "layers.2.self_attn.v_proj"}},
      {"some_layers", {"h.1.attn.c_proj", "h.1.mlp.c_proj"}}};
  const std::string folder = kFixtureFolder + "peft_targets/";
  const auto cases = nlohmann::json::parse(read_text_file(folder + "expected.json", 1 << 16))["cases"];
  ASSERT_EQ(cases.size(), targets.size());
  for (const auto& [name, c] : cases.items()) {
    SCOPED_TRACE(name);
    const DriveDirectory directory;
    TestRun run;
    Options& o = run.options;
    start_from(c["model"], folder + name, o);
    Words named = o.lora.targets;
    std::sort(named.begin(), named.end());
    EXPECT_EQ(named, targets.at(name));
    o.data.train = {kFixtureTokens};
    o.data.order = RowOrder::sequential;
    if (name == "shared_expert") o.model.router_loss = 0;
    o.batch = {4, 37, 2, 1};
    o.numbers.precision = DType::f32;
    o.run.out = directory / "out";
    const double loss = train(run).steps.front().loss, expected = c["loss"];
    EXPECT_LE(std::abs(loss - expected) / expected, kLossTolerance);
  }
}

// A run in bf16 whose base is the llama fixture, in eight micro-batches.
TestRun short_lora_run(const DriveDirectory& directory, int64_t rank = 3) {
  TestRun run;
  run.options = short_run(directory, std::filesystem::absolute(kFixtureFolder + "llama").string(),
                          std::filesystem::absolute(kFixtureTokens).string());
  run.options.lora.rank = rank;
  run.options.batch = {8, 37, 1, 5};
  run.options.batch.waves = 1;
  run.options.optimizer.learning_rate = 1e-2;
  run.options.memory.overlap = Overlap::never;
  run.options.memory.nvme_directories.clear();
  return run;
}

struct Bits {
  std::vector<std::string> steps;
  Tensors tensors;
};

Bits bits_of(TestRun run, const DriveDirectory& directory, const std::string& out) {
  run.options.run.out = directory / out;
  Bits bits{fixed_bits(train(run).steps), {}};
  bits.tensors = newest_tensors(run.options.run.out);
  return bits;
}

void expect_same(const Bits& found, const Bits& wanted, const std::string& what) {
  const std::string different = differences(found.tensors, wanted.tensors);
  EXPECT_EQ(found.steps, wanted.steps) << what;
  EXPECT_EQ(different, "") << what;
  figures.holds("adapters: runs with the bits of the plain run",
                found.steps == wanted.steps && different.empty());
}

TEST(Lora, BitsDoNotDependOnBudgetsWavesAndLevels) {
  for (const DType precision : {DType::bf16, DType::f32}) {
    const DriveDirectory directory;
    TestRun plain = short_lora_run(directory);
    plain.options.numbers.precision = precision;
    const Bits wanted = bits_of(plain, directory, "plain");
    for (const Recompute level : kRecomputes) {
      TestRun run = plain;
      run.options.memory.recompute = level;
      expect_same(bits_of(run, directory, recompute_name(level)), wanted, recompute_name(level));
    }
    for (const int64_t waves : {1, 2, 8})
      for (const bool device : {false, true}) {
        TestRun run = plain;
        run.options.batch.waves = waves;
        run.options.memory.overlap = Overlap::always;
        run.options.memory.nvme_directories = {directory.path()};
        run.arenas = least_arenas(run, device);
        const std::string what = std::to_string(waves) + (device ? " waves, all tiers" : " waves, host");
        expect_same(bits_of(run, directory, what), wanted, what);
      }
  }
}

TEST(Lora, StoppedAndResumedUnderOtherBudgetsItGivesTheSameBits) {
  const DriveDirectory directory;
  const TestRun plain = short_lora_run(directory);
  const Bits wanted = bits_of(plain, directory, "plain");
  TestRun run = plain;
  run.options.run.out = directory / "stopped";
  run.stop_after = 1;
  Bits found{fixed_bits(train(run).steps), {}};
  run.stop_after = 0;
  run.options.run.resume = "auto";
  run.options.memory.nvme_directories = {directory.path()};
  run.arenas = least_arenas(run, true);
  for (const std::string& line : fixed_bits(train(run).steps)) found.steps.push_back(line);
  found.tensors = newest_tensors(run.options.run.out);
  expect_same(found, wanted, "resumed");
}

// Every value of a checkpoint is an adapter's, and the base is named.
TEST(Lora, CheckpointsHoldAdaptersAlone) {
  const DriveDirectory directory;
  const TestRun run = short_lora_run(directory);
  const TestResult result = train(run);
  const std::string path = *newest_checkpoint(run.options.run.out);
  size_t tensors = 0;
  for (const auto& [name, bytes] : tensors_of(path)) {
    if (name.find(":padding.") != std::string::npos) continue;
    EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
    ++tensors;
  }
  EXPECT_EQ(tensors, 3u * 7 * 2 * 3);  // layers, linear ops, factors, planes
  EXPECT_FALSE(std::filesystem::exists(path + "/frozen.safetensors"));
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  ASSERT_TRUE(checkpoint.state().base);
  EXPECT_EQ(checkpoint.state().base->directory, run.options.model.model);
  const HfWeights base = HfWeights::open(run.options.model.model, "llama");
  EXPECT_NO_THROW(check_base(base, result.plan.model, *checkpoint.state().base));
  uint64_t on_drive = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) on_drive += entry.file_size();
  const uint64_t predicted = checkpoint_bytes(result.plan, OptimizerKind::adamw);
  EXPECT_GE(on_drive, predicted);
  EXPECT_LE(on_drive - predicted, checkpoint_space(result.plan, OptimizerKind::adamw).bytes - predicted);
}

// Only the body `load` writes weights of the base, wherever they live.
TEST(Lora, TheBaseIsWrittenOnceAtLoad) {
  const DriveDirectory directory;
  TestRun run = short_lora_run(directory);
  run.options.memory.nvme_directories = {directory.path()};
  run.arenas = least_arenas(run, true);
  const auto result = plan_of(run);
  const Plan& plan = std::get<Plan>(result);
  const TierId drive = static_cast<TierId>(plan.program.machine.tiers.size() - 1);
  ASSERT_TRUE(plan.program.machine.tiers[drive].file);
  std::vector<bool> of_base(plan.program.buffers.size());
  size_t on_drive = 0;
  for (size_t g = 0; g < plan.model.groups.size(); ++g) {
    if (plan.model.groups[g].adapter) continue;
    EXPECT_FALSE(plan.model.groups[g].trainable);
    const BufferId weights = plan.lowering.groups[g].weights;
    of_base[weights] = true;
    on_drive += plan.program.buffers[weights].home == drive;
    EXPECT_EQ(plan.lowering.groups[g].gradient, kNone);
    EXPECT_TRUE(plan.lowering.groups[g].state.empty());
  }
  EXPECT_GT(on_drive, 0u);
  size_t written = 0;
  for (const Body& body : plan.program.bodies)
    for (const Instruction& in : body.instructions)
      if (in.task == kNoTask && in.places[1].tier == drive && of_base[in.operands[1].buffer]) {
        EXPECT_EQ(body.name, "load");
        ++written;
      }
  EXPECT_GT(written, 0u);
}

// Frozen layers below all trained ones have no backward, and gradients stop at the first adapter.
TEST(Lora, NothingBelowTheFirstAdapterHasABackward) {
  const DriveDirectory directory;
  const auto result = plan_of(short_lora_run(directory));
  const Plan& plan = std::get<Plan>(result);
  for (const UseInfo& use : plan.lowering.uses) {
    const WantedGradients& wanted = plan.lowering.plans()[use.plan].wanted;
    const std::string& layer = plan.model.layers[use.layer].name;
    if (layer == "embedding") {
      EXPECT_EQ(std::ranges::count(wanted.trainable, true), 0);
    } else if (layer == "model.layers.0") {
      EXPECT_EQ(wanted.trainable, (std::vector<bool>{false, true}));
      EXPECT_EQ(std::ranges::count(wanted.inputs, true), 0);
    }
  }
  for (const Body& body : plan.program.bodies)
    for (const Task& task : body.tasks)
      if (task.kind == TaskKind::backward) {
        EXPECT_NE(plan.model.layers[plan.lowering.uses[task.subject].layer].name, "embedding");
      }
}

TEST(Lora, AnotherBaseIsRefused) {
  const DriveDirectory directory;
  const TestRun run = short_lora_run(directory);
  const Model model = std::get<Plan>(plan_of(run)).model;
  const HfWeights base = HfWeights::open(run.options.model.model, "llama");
  const BaseModel other{run.options.model.model, sampled_checksum(base, model) + 1};
  EXPECT_THROW(check_base(base, model, other), Error);
  const BaseModel gone{directory / "nowhere", 0};
  LoraOptions options;
  try {
    base_directory(gone, options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere is no directory"), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("--base DIR"), std::string::npos);
  }
  options.base = run.options.model.model;
  EXPECT_EQ(base_directory(gone, options), options.base);
}

}  // namespace
}  // namespace sluice
