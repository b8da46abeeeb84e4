// What the end-to-end tests share: a run as the verb `train` makes it, but with arenas set to the byte and
// with chosen executors, faults and stops; and the bits that the run leaves behind.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/execute/recorder.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/loader.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/session_start.h"
#include "engine/run/start/text_start.h"
#include "models/files/safetensors.h"
#include "models/weights/hf_weights.h"
#include "tests/support/offload_test_support.h"
#include "tests/support/sample_text.h"

namespace sluice {

constexpr uint64_t kRoomy = uint64_t{1} << 40;  // bytes: more than any test's plan can use

struct TestRun {
  Options options;
  TierCapacities arenas{std::nullopt, kRoomy,
                        std::nullopt};  // bytes of the arenas themselves, without reserves
  ExecutorKind executor = ExecutorKind::threaded;
  uint64_t seed = 1;  // of the shuffled executor
  int threads = 2;
  Ranks ranks;
  bool ranks_meet_in_device = false;  // otherwise what they exchange goes through host memory
  int64_t stop_after = 0;  // the stop flag is set when this step's loss is read; 0: never; -1: from the start
  std::function<std::unique_ptr<IoQueue>(std::unique_ptr<IoQueue>)> wrap_queue;
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> wrap_device;
  std::function<void(CheckpointState&)> alter_start;
  std::function<Model(Model)> alter_model;
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(const ValidationMetrics&)> on_validation;
  std::function<void(const std::string&)> on_trouble;
  StopForecast* forecast = nullptr;
  std::shared_ptr<const SamplePrompts> samples;  // nullptr: none are written
  uint64_t search_work = kSearchWork / 20;       // little, since every plan gives the same bits
  bool keep_steps = true;                        // whether the result has the steps
  std::optional<Recorder>* recorder = nullptr;   // gets the trace of every step, also of a run that fails
};

struct TestResult {
  std::vector<StepMetrics> steps;
  std::vector<ValidationMetrics> validations;
  std::vector<SampleMetrics> samples;
  size_t checkpoints = 0;
  TrainResult end;
  Plan plan;
};

// A recorder with room for the steps of a run and its drain.
inline Recorder recorder_for(const Plan& plan, int64_t steps) {
  return Recorder(plan.program, plan.lowering.bodies().of_training(),
                  static_cast<size_t>(steps) * plan.lowering.waves + 1);
}

// Options of a short run on `data`. Its run directory and nvme directory lie in `directory`.
inline Options short_run(const DriveDirectory& directory, const std::string& model, const std::string& data) {
  Options o;
  o.model.model = model;
  o.data.train = {data};
  o.batch.batch = 4;
  o.batch.micro_batch = 2;
  o.batch.steps = 4;
  o.optimizer.learning_rate = 2e-3;
  o.run.out = directory / "out";
  o.memory.nvme_directories = {directory.path()};
  return o;
}

inline Budgets budgets_of(const TestRun& run) {
  Budgets b;
  b.threads = run.threads;
  const uint64_t reserve = runtime_reserve_bytes(run.threads);
  const TierCapacities& arenas = run.arenas;
  if (arenas.device) b.device = {"device", "gpu-mem", *arenas.device, 0, *arenas.device};
  b.host = {"host", "host-mem", arenas.host + reserve, reserve, arenas.host};
  if (arenas.nvme) b.nvme = {"nvme", "nvme-mem", *arenas.nvme, 0, *arenas.nvme};
  return b;
}

// The plan's request as the verbs make it. `device` must outlive it.
inline PlanRequest request_of(const TestRun& run, const Device& device) {
  ModelSource source = resolve_model(run.options.model);
  source.config.adapters = adapters_of(run.options.lora);
  PlanRequest request = plan_request(run.options, source.config, budgets_of(run), needs_of(device),
                                     {.validates = !run.options.data.validation.empty()},
                                     run.ranks_meet_in_device, sizes_of(run.samples));
  request.search_work = run.search_work;
  if (run.alter_model)
    request.model = [make = request.model, alter = run.alter_model](int64_t m, int64_t sequence) {
      return alter(make(m, sequence));
    };
  return request;
}

inline std::variant<Plan, Infeasible> plan_of(const TestRun& run) {
  const auto device = make_device(run.options.memory, run.threads);
  return make_plan(request_of(run, *device));
}

// The least arenas of all tiers, as the planner names them when it refuses a plan without memory. `device`
// says whether the device has an arena.
inline TierCapacities least_arenas(TestRun run, bool device) {
  run.arenas = {device ? std::optional<uint64_t>(0) : std::nullopt, 0, kRoomy};
  const auto result = plan_of(run);
  const auto* infeasible = std::get_if<Infeasible>(&result);
  EXPECT_NE(infeasible, nullptr) << "a plan without memory";
  if (infeasible == nullptr) return run.arenas;
  const std::vector<uint64_t>& bytes = infeasible->least_together;
  if (device) return {bytes.at(0), bytes.at(1), bytes.at(2)};
  return {std::nullopt, bytes.at(0), bytes.at(1)};
}

// The run's ranks. With ranks_meet_in_device they exchange in device memory. On accelerators they use the
// communicator that connects the accelerators, which `connected` then owns. Where device memory is host
// memory, they use the collective lane's communicator.
inline Ranks meeting_ranks(const TestRun& run, Device& device, AcceleratorRanks& connected) {
  Ranks ranks = run.ranks;
  if (!run.ranks_meet_in_device) return ranks;
  connected = connect_accelerators(device, ranks);
  if (device.accelerator() && !connected.communicator)
    throw Error(ExitCode::environment, "Ranks cannot meet: " + connected.reason + ".", "");
  ranks.device = connected.communicator.get();
  return ranks;
}

// Trains as `sluice train` does. With options.run.resume it starts from that checkpoint, or for "auto" from
// the newest one in the run directory. Without a checkpoint it starts from the weights of the model's Hugging
// Face directory, or from initial weights. The options of the adapters of --lora-from are not read from their
// directory: `run` must have them.
inline TestResult train(const TestRun& run) {
  Options options = run.options;
  RunStart start;
  std::optional<CheckpointReader>& resumed = start.checkpoint;
  if (!options.run.resume.empty()) {
    const auto path = options.run.resume == "auto" ? newest_checkpoint(options.run.out) : options.run.resume;
    if (path) resumed = CheckpointReader::open(*path);
    for (const OptionRow& row : option_table())  // budgets and the like are those of this test's run
      if (row.on_resume == OnResume::kept) options.given.push_back(row.name);
    if (resumed) apply_manifest(options, resumed->state().options);
  }
  start.source = resumed ? source_of_run(*resumed, options, true) : resolve_model(options.model);
  start.source.config.adapters = adapters_of(options.lora);
  start.adapters_directory = resumed ? "" : options.lora.from;
  const ModelSource& source = start.source;
  options.batch.sequence = options.batch.sequence.value_or(source.config.context);
  options.ranks.here = run.ranks.rank();
  const RunData data = open_run_data(options, {}, source.config);
  TrainData view = data.view();
  view.samples = run.samples.get();

  TestRun resolved = run;
  resolved.options = options;
  auto device = make_device(options.memory, run.threads);
  if (run.wrap_device) device = run.wrap_device(std::move(device));
  AcceleratorRanks connected;
  const Ranks ranks = meeting_ranks(run, *device, connected);
  TestResult result;
  const PlanRequest request = request_of(resolved, *device);
  result.plan = plan_alike(request, budgets_of(run), ranks, plan_or_throw(request, budgets_of(run)));
  const Plan& plan = result.plan;
  options.batch.micro_batch = plan.model.micro_batch;
  check_start(start, plan.model);
  CheckpointState state = resumed ? resumed->state() : first_state(options, source.config);
  state.micro_batch = plan.model.micro_batch;
  state.options = manifest_options(options);
  state.base = start.base;
  if (run.alter_start) run.alter_start(state);

  std::filesystem::create_directories(options.run.out);
  SessionOptions s = session_options(options, run.threads);
  s.executor = run.executor;
  s.seed = run.seed;
  s.poison = true;
  s.ranks = ranks;
  s.wrap_queue = run.wrap_queue;
  Session session(plan, *device, s);
  Workers workers(run.threads);
  load_start(start, options.numbers.seed, session, workers);

  std::atomic<bool> stop{run.stop_after < 0};
  TrainEvents events;
  if (run.recorder) events.recorder = &run.recorder->emplace(recorder_for(plan, options.batch.steps));
  events.step = [&](const StepMetrics& m) {
    if (run.keep_steps) result.steps.push_back(m);
    if (run.on_step) run.on_step(m);
    if (m.step == run.stop_after) stop = true;
  };
  events.validation = [&](const ValidationMetrics& v) {
    result.validations.push_back(v);
    if (run.on_validation) run.on_validation(v);
  };
  events.samples = [&](const SampleMetrics& m) { result.samples.push_back(m); };
  events.checkpoint = [&](const std::string&) { ++result.checkpoints; };
  events.trouble = run.on_trouble;
  events.forecast = run.forecast;
  result.end = Trainer(session, options, view, state, stop, events).run();
  return result;
}

// The error of train_ranks() when one rank's trainer throws "thrown by the test" at step 3, while others are
// somewhere in the step.
inline std::string told_when_one_throws(TestRun run, TestResult (&train_ranks)(const TestRun&)) {
  std::atomic<bool> thrown{false};
  run.on_step = [&](const StepMetrics& m) {
    if (m.step == 3 && !thrown.exchange(true)) throw std::runtime_error("thrown by the test");
  };
  try {
    train_ranks(run);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Every tensor of a checkpoint as bytes: weights, master weights, moments.
using Tensors = std::map<std::string, std::string>;
inline Tensors tensors_of(const std::string& checkpoint) {
  Tensors out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = SafetensorsFile::open(entry.path().string());
    for (const SafetensorsTensor& t : file.tensors()) {
      std::string bytes(t.bytes, '\0');
      file.read_raw(t, 0, t.bytes, bytes.data());
      out[entry.path().filename().string() + ":" + t.name] = std::move(bytes);
    }
  }
  EXPECT_FALSE(out.empty()) << checkpoint;
  return out;
}
inline Tensors newest_tensors(const std::string& out) {
  const auto path = newest_checkpoint(out);
  EXPECT_TRUE(path.has_value()) << out;
  return path ? tensors_of(*path) : Tensors{};
}

// How many tensors differ, and the names of up to four; "" if none differs.
inline std::string differences(const Tensors& a, const Tensors& b) {
  std::string names;
  size_t count = 0;
  for (const auto& [name, bytes] : a) {
    const auto it = b.find(name);
    if (it != b.end() && it->second == bytes) continue;
    if (++count <= 4) names += name + " ";
  }
  for (const auto& [name, bytes] : b) count += !a.contains(name);
  return count == 0 ? "" : std::to_string(count) + " tensors differ: " + names;
}

// The numbers of a step that must be the same in every bit, as text.
inline std::string fixed_bits(const StepMetrics& m) {
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  std::string text =
      fmt::format("step {} loss {:016x} routers {:016x} norm {:016x} skipped {} scale {:a}", m.step,
                  bits(m.loss), bits(m.router_loss.value_or(0)), bits(m.grad_norm), m.skipped, m.loss_scale);
  for (const LayerTokens& of : m.expert_tokens)
    text += fmt::format(" layer {} dropped {}", of.layer, of.dropped.value_or(0));
  return text;
}
inline std::vector<std::string> fixed_bits(const std::vector<StepMetrics>& steps) {
  std::vector<std::string> out;
  for (const StepMetrics& m : steps) out.push_back(fixed_bits(m));
  return out;
}
inline std::vector<std::string> fixed_bits(const std::vector<ValidationMetrics>& lines) {
  std::vector<std::string> out;
  for (const ValidationMetrics& v : lines)
    out.push_back(fmt::format("{} {:016x} {:016x}", v.step, std::bit_cast<uint64_t>(v.val_loss),
                              std::bit_cast<uint64_t>(v.router_loss.value_or(0))));
  return out;
}

}  // namespace sluice
