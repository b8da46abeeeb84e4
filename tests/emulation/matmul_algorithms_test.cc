// Tests algorithms of matrix products that are chosen by time: `sluice bench --model` writes them, a run uses
// them, and a resumed run keeps them. On the emulated GPU every algorithm rounds sums in an order of its own
// (cublaslt_emulation.cc).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "gpu/cuda/matmul.h"
#include "tests/emulation/emulated_command.h"
#include "tests/support/training_support.h"
#include "tools/bench/algorithms.h"
#include "tools/benchmarks/gpu/training.h"

namespace sluice {
namespace {

using emulation::EmulatedGpu;
using Json = nlohmann::json;
using Used = std::set<uint32_t>;

constexpr uint64_t kVersion = EmulatedGpu{}.cublaslt_version;

// A product of 16-bit matrices whose rows are `stride` elements apart.
Product product_of(int64_t stride) {
  return {4, stride, stride, false, false, stride, stride, stride, DType::bf16, DType::bf16};
}

// The algorithms of cuBLASLt by which products were run.
Used used_algorithms() {
  Used used;
  for (const auto& [kind, count] : emulation::counts().products) used.insert(kind.first);
  return used;
}

// Seconds of a product by each algorithm of the heuristic. The first row is for products that do not add to
// C, the second for products that do.
double seconds_of[2][4];

// The seconds that all products so far would have taken.
double seconds_of_products() {
  double sum = 0;
  for (const auto& [kind, count] : emulation::counts().products)
    sum += static_cast<double>(count) * seconds_of[kind.second][kind.first];
  return sum;
}

class MatmulAlgorithms : public EmulatedRun {
 protected:
  // The products of a training as bench writes them, each with algorithm `number` of the heuristic.
  cuda::ChosenAlgorithms chosen(size_t number, const Words& model) const {
    Words words = Words{"sluice", "bench", "--device", "cuda"} + model;
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    const Options options = parse_command_line(static_cast<int>(argv.size()), argv.data()).options;
    const auto multiplier = cuda::make_multiplier({nullptr, 1});
    cuda::ChosenAlgorithms all{{"emulated GPU", "8.0", kVersion}, {}};
    for (const Product& product : products_to_time(options)) {
      const auto [part, algorithms] = multiplier->candidates(product, 8);
      all.products[cuda::product_text(part)] = algorithms.at(number);
    }
    return all;
  }
  // A machine description with algorithms as text. Returns its path.
  std::string description(const std::string& name, const std::string& algorithms) const {
    MachineRates rates = default_machine_rates();
    rates.matmul_algorithms = algorithms;
    const std::string file = directory / (name + ".json");
    write_bytes(file, machine_rates_json(rates));
    return file;
  }
  std::string description(const std::string& name, size_t number) const {
    return description(name, cuda::algorithms_text(chosen(number, kModel)));
  }

  Ended run_on(const EmulatedGpu& gpu, const Words& words) const {
    emulation::set_up(gpu);
    return run_command(words);
  }
  // Trains on the GPU. Returns what it printed.
  std::string expect_trained(const std::string& out, int64_t steps, const Words& more,
                             const Used& used) const {
    const Ended ended = run_on({}, train(out, steps, kDevice + more));
    EXPECT_EQ(ended.code, ExitCode::done) << ended.what << " " << ended.remedy;
    EXPECT_EQ(used_algorithms(), used) << out;
    expect_nothing_on_the_gpu();
    return ended.out;
  }
  Ended expect_refused(const EmulatedGpu& gpu, const Words& words, ExitCode code, const Words& parts) const {
    const Ended ended = run_on(gpu, words);
    EXPECT_EQ(ended.code, code) << ended.what;
    expect_sentences(ended);
    for (const std::string& part : parts)
      EXPECT_NE((ended.what + " " + ended.remedy).find(part), std::string::npos)
          << part << " in: " << ended.what << " " << ended.remedy;
    expect_nothing_on_the_gpu();
    return ended;
  }
  Tensors trained(const std::string& out) const { return newest_tensors(directory / out); }

  const Words kDevice{"--device", "cuda", "--lr-schedule", "constant"};
  const Words kModel{"--model", kTiny, "--batch", "4", "--micro-batch", "2"};
};

TEST_F(MatmulAlgorithms, BenchTimesThemAndTrainUsesThem) {
  const std::string file = directory / "measured.json";
  const OpSizes ops{.rows = 32, .width = 64, .vocabulary = 128, .seconds_at_least = 0, .repeat_seconds = 0};
  const BenchScale scale{.parameters = 4 << 20,
                         .round_elements = 1 << 20,
                         .copy_bytes = 1 << 20,
                         .network_seconds = 0,
                         .gpu = {.elements = 1 << 17, .ops = ops, .product_seconds = 0}};
  // The other algorithms sleep longer than a product may wait for a busy processor.
  emulation::set_up({.fast_algorithm = 2, .product_microseconds = 20'000});
  const Ended ended = run_command(Words{"bench", "--device", "cuda", "--out", file} + kModel, scale);
  ASSERT_EQ(ended.code, ExitCode::done) << ended.what << ended.out;
  expect_nothing_on_the_gpu();
  const std::string name = "64 x 96 x 32 bf16 a=32 b=96 c=96 bias";
  const size_t line = ended.out.find(name);
  ASSERT_NE(line, std::string::npos) << ended.out;
  EXPECT_EQ(ended.out.find(name, line + 1), std::string::npos) << "once, though two layers have it";
  EXPECT_NE(ended.out.find("sluice train --matmul-algorithms " + file), std::string::npos) << ended.out;

  const MachineRates rates = parse_machine_rates(read_text_file(file, 1 << 20), file);
  EXPECT_EQ(rates.matmul_algorithms, cuda::algorithms_text(chosen(2, kModel)));
  expect_trained("timed", 2, {"--matmul-algorithms", file}, {2});
  expect_trained("first", 2, {}, {0});
  EXPECT_NE(differences(trained("timed"), trained("first")), "") << "another order of sums";
}

// Without --micro-batch, the planner may choose among several micro-batches.
TEST_F(MatmulAlgorithms, BenchTimesTheProductsOfEveryMicroBatch) {
  const cuda::ChosenAlgorithms one = chosen(0, kModel), all = chosen(0, {"--model", kTiny, "--batch", "4"});
  EXPECT_EQ(all.products.size(), 3 * one.products.size()) << "micro-batches of 4, 2 and 1";
  for (const auto& [product, algorithm] : one.products)
    EXPECT_TRUE(all.products.contains(product)) << product;
}

// GPUs before compute capability 8.0 have no bf16; training takes fp16 there.
TEST_F(MatmulAlgorithms, AMeasurementTimesThemInThePrecisionOfATraining) {
  const Row row = rehearsed(*find_row("small", "algorithms-gpt2-xl"));
  for (const int major : {7, 8}) {
    emulation::set_up({.capability_major = major, .capability_minor = major == 7 ? 5 : 0});
    const Json products = measure_algorithms(row, DeviceKind::cuda, true).at("products");
    EXPECT_FALSE(products.empty());
    for (const Json& product : products)
      EXPECT_NE(product["product"].get<std::string>().find(major == 7 ? " fp16" : " bf16"), std::string::npos)
          << product;
  }
}

TEST_F(MatmulAlgorithms, BitsDependOnThemAndNotOnBudgets) {
  const Words timed{"--matmul-algorithms", description("timed", 1)};
  expect_trained("roomy", 3, timed, {1});
  expect_trained("small", 3,
                 timed + Words{"--gpu-mem", "400MiB", "--host-mem", "1GiB", "--placement", "lowest",
                               "--recompute", "all", "--nvme-dir", scratch},
                 {1});
  EXPECT_EQ(differences(trained("roomy"), trained("small")), "");
  // Every rank uses them.
  const Ended ranks = run_on({.count = 2}, train("ranks", 2, kDevice + timed + Words{"--gpus", "2"}));
  EXPECT_EQ(ranks.code, ExitCode::done) << ranks.what;
  EXPECT_EQ(used_algorithms(), Used{1});
}

// A checkpoint has the algorithms themselves.
TEST_F(MatmulAlgorithms, ARunGoesOnWithThoseThatItHas) {
  const std::string file = description("timed", 2), other = description("other", 1);
  const Words timed{"--matmul-algorithms", file}, resume{"--resume", "auto"};
  expect_trained("straight", 4, timed, {2});
  for (const char* run : {"run", "changed", "branched"}) expect_trained(run, 2, timed, {2});
  const std::string checkpoint = *newest_checkpoint(directory / "run");
  EXPECT_EQ(CheckpointReader::open(checkpoint).state().matmul_algorithms,
            cuda::algorithms_text(chosen(2, kModel)));

  EXPECT_NE(expect_trained("changed", 3, resume + Words{"--matmul-algorithms", other}, {1})
                .find("--matmul-algorithms " + other + " replaces the run's"),
            std::string::npos);
  EXPECT_NE(expect_trained("changed", 4, resume + Words{"--matmul-algorithms", "none"}, {0})
                .find("--matmul-algorithms none replaces the run's"),
            std::string::npos);
  expect_trained("changed", 5, resume, {0});
  EXPECT_EQ(expect_trained("run", 3, resume + timed, {2}).find("replaces"), std::string::npos);

  std::filesystem::remove(file);
  EXPECT_NE(expect_trained("run", 4, resume, {2}).find("by the algorithms that the run was given"),
            std::string::npos);
  EXPECT_EQ(differences(trained("run"), trained("straight")), "");
  expect_trained("elsewhere", 4, {"--resume", *newest_checkpoint(directory / "branched")}, {2});
  EXPECT_EQ(differences(trained("elsewhere"), trained("straight")), "");

  const EmulatedGpu another{.name = "another GPU"};
  expect_refused(
      another, train("run", 5, resume), ExitCode::environment,
      {"timed on emulated GPU (compute capability 8.0) with cuBLASLt 13.1.0, and this is another GPU",
       "or give --matmul-algorithms none"});
  emulation::set_up(another);
  EXPECT_EQ(run_command(train("run", 5, resume + Words{"--matmul-algorithms", "none"})).code, ExitCode::done);
}

TEST_F(MatmulAlgorithms, CheckpointsHaveThoseThatARunHas) {
  const auto manifest = [&](const std::string& out) {
    return Json::parse(read_text_file(*newest_checkpoint(directory / out) + "/manifest.json", 1 << 20));
  };
  expect_trained("with", 2, {"--matmul-algorithms", description("timed", 2)}, {2});
  expect_trained("without", 2, {}, {0});
  EXPECT_EQ(manifest("with")["matmul_algorithms"], cuda::algorithms_text(chosen(2, kModel)));
  EXPECT_FALSE(manifest("without").contains("matmul_algorithms"));
}

TEST_F(MatmulAlgorithms, OtherVerbsTakeThem) {
  const Words timed{"--matmul-algorithms", description("timed", 2)}, cuda{"--device", "cuda"};
  expect_trained("run", 2, timed, {2});
  const auto expect_done = [&](const Words& words, const Used& used) {
    const Ended ended = run_on({}, words);
    EXPECT_EQ(ended.code, ExitCode::done) << ended.what << ended.out;
    EXPECT_EQ(used_algorithms(), used) << words[0];
  };
  const Words eval{"eval",          "--from", directory / "run", "--data", text,
                   "--val-batches", "1",      "--device",        "cuda"};
  expect_done(eval + timed, {2});
  expect_done(eval, {0});
  const Words training = kModel + Words{"--data", text} + cuda + timed;
  expect_done(Words{"profile", "--steps", "4", "--out", directory / "report", "--"} + training, {2});
  expect_done(Words{"plan", "--no-advice"} + kModel + cuda + timed, {});
  expect_refused({.name = "another GPU"}, Words{"plan", "--no-advice"} + kModel + cuda + timed,
                 ExitCode::environment, {"timed on emulated GPU"});
  // A plan for a GPU elsewhere.
  expect_done(Words{"plan", "--no-advice", "--machine", "h100"} + kModel + timed, {});
}

TEST_F(MatmulAlgorithms, OthersThanTheGpusAreRefused) {
  const auto refused = [&](const EmulatedGpu& gpu, const std::string& algorithms, ExitCode code,
                           const Words& parts, const Words& more = {"--device", "cuda"}) {
    const Words words{"--matmul-algorithms", description("refused", algorithms)};
    expect_refused(gpu, train("refused", 2, words + more), code, parts);
    EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
  };
  const cuda::ChosenAlgorithms all = chosen(2, kModel);
  const std::string right = cuda::algorithms_text(all);
  refused({.name = "another GPU"}, right, ExitCode::environment, {"this is another GPU", "sluice bench"});
  refused({.capability_major = 9}, right, ExitCode::environment, {"compute capability 9.0"});
  refused({.cublaslt_version = 130200}, right, ExitCode::environment, {"with cuBLASLt 13.2.0"});
  refused({}, right, ExitCode::usage, {"is for --device cuda"}, {"--device", "cpu"});
  refused({}, "", ExitCode::usage, {"has no algorithms", "sluice bench"});

  cuda::ChosenAlgorithms lacking = all;
  EXPECT_EQ(lacking.products.erase("64 x 96 x 32 bf16 a=32 b=96 c=96 bias"), 1u);
  refused({}, cuda::algorithms_text(lacking), ExitCode::usage,
          {"none for the product 64 x 96 x 32 bf16 a=32 b=96 c=96 bias, in linear forward of bf16",
           "--micro-batch"});
  // What the library, or this build, does not take.
  const auto changed = [&](const std::function<void(cuda::Algorithm&)>& change) {
    cuda::ChosenAlgorithms wrong = all;
    for (auto& [product, algorithm] : wrong.products) change(algorithm);
    return cuda::algorithms_text(wrong);
  };
  refused({}, changed([](cuda::Algorithm& a) { a[1] = 7; }), ExitCode::environment,
          {"The algorithm `id=2 tile=7 ", "cuBLASLt says: not supported, in", "sluice bench"});
  refused({}, changed([](cuda::Algorithm& a) { a[0] = 99; }), ExitCode::environment, {"invalid value"});
  refused({}, changed([](cuda::Algorithm& a) { a[8] += 1 << 16; }), ExitCode::environment, {"invalid value"});
  // Texts that are not the device's.
  Json json = Json::parse(right);
  json.erase("cublaslt");
  refused({}, json.dump(), ExitCode::malformed_file, {"there is no `cublaslt`"});
  json = Json::parse(right);
  json["products"] = Json::array();
  refused({}, json.dump(), ExitCode::malformed_file, {"`products` is not an object"});
  for (const char* wrong :
       {"", "id=2", "id=2 tile=22 split_k=3 reduction=2 swizzle=0 custom=0 stages=12 x=0 y=0"}) {
    json = Json::parse(right);
    json["products"]["p"] = wrong;
    refused({}, json.dump(), ExitCode::malformed_file, {"of p is not an algorithm"});
  }
  json["more"] = 1;
  refused({}, json.dump(), ExitCode::malformed_file, {"matmul_algorithms has the unknown key more"});
}

TEST_F(MatmulAlgorithms, BenchRefusesWhatItCannotTime) {
  const std::string file = directory / "none.json";
  const auto refused = [&](const Words& more, const std::string& part) {
    expect_refused({}, Words{"bench", "--out", file} + more, ExitCode::usage, {part});
    EXPECT_FALSE(std::filesystem::exists(file));
  };
  refused({"--batch", "4"}, "--batch needs --model");
  refused({"--precision", "fp16"}, "--precision needs --model");
  refused(kModel + Words{"--device", "cpu"}, "--model is for --device cuda");
  refused({"--model", "gpt17"}, "gpt17");
}

// Returns the algorithms that are chosen for linear's y, dx and dW if seconds_of_products() is the clock.
std::array<uint32_t, 3> chosen_by_time() {
  const OpShapes shapes{OpKind::linear, {}, DType::bf16, {{8, 16}}, {{8, 24}}, {{16, 24}}};
  AlgorithmMeasurement m{.clock = seconds_of_products, .timed = [](const TimedProduct&) {}};
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const Product& product : products_of(shapes, pass)) m.products.push_back(product);
  const TimedAlgorithms timed = cuda_time_algorithms(m);
  const cuda::ChosenAlgorithms chosen = cuda::parse_algorithms(timed.text);
  std::array<uint32_t, 3> ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    const TimedProduct& p = timed.products.at(i);
    ids[i] = chosen.products.at(p.name)[0];
    const double* const seconds = seconds_of[i == 2];
    EXPECT_NEAR(p.first / p.chosen, seconds[ids[i]] / seconds[0], 1e-6) << p.name;
  }
  return ids;
}

// Noise must not decide which sums a training makes.
TEST_F(MatmulAlgorithms, TheFirstIsChosenUnlessAnotherIsFasterByMoreThanNoise) {
  const auto expect = [](double second, double third, uint32_t id) {
    for (auto& seconds : seconds_of) std::ranges::copy(std::array{1.0, second, third, 1.0}, seconds);
    EXPECT_EQ(chosen_by_time(), (std::array{id, id, id})) << second << " " << third;
  };
  expect(1, 1, 0);
  expect(0.985, 0.99, 0);
  expect(0.975, 0.99, 1);
  expect(0.97, 0.96, 2);
}

// The gradient of a weight adds to what is there in every micro-batch but the first.
TEST_F(MatmulAlgorithms, GradientsOfWeightsAreTimedAsTheyAdd) {
  std::ranges::copy(std::array{1.0, 0.5, 1.0, 1.0}, seconds_of[0]);
  std::ranges::copy(std::array{1.0, 1.0, 0.5, 1.0}, seconds_of[1]);
  EXPECT_EQ(chosen_by_time(), (std::array{1u, 1u, 2u}));
}

// What the heuristic is told of a product also bounds algorithms that come as text.
TEST_F(MatmulAlgorithms, CandidatesObeyTheSameRulesAsTheFirst) {
  using Ids = std::vector<uint32_t>;
  const auto multiplier = cuda::make_multiplier({nullptr, 1});
  const auto ids = [&](const Product& product, int most) {
    Ids all;
    for (const cuda::Algorithm& algorithm : multiplier->candidates(product, most).algorithms)
      all.push_back(algorithm[0]);
    return all;
  };
  const Product aligned = product_of(8), odd = product_of(9);
  Product biased = aligned, wide = product_of(8);
  biased.bias = wide.bias = true;
  wide.precision = wide.result = DType::f32;
  EXPECT_EQ(ids(aligned, 8), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(ids(aligned, 2), (Ids{0, 1}));
  EXPECT_EQ(ids(odd, 8), (Ids{0, 2, 3})) << "rows are aligned to two bytes";
  EXPECT_EQ(ids(biased, 8), (Ids{0, 1, 2})) << "a sum of parts would be rounded before it gets the bias";
  EXPECT_EQ(ids(wide, 8), (Ids{0, 1, 2, 3})) << "rounding to fp32 changes no sum";
  const auto refusal = [&](const Product& product, const cuda::Algorithm& algorithm) {
    try {
      multiplier->prepare(product, algorithm);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::environment);
      return std::string(error.what());
    }
    return std::string();
  };
  const cuda::Algorithm for_aligned{1, 21, 1, 0, 1, 0, 11, 0, 1}, split{3, 23, 4, 2, 1, 0, 13, 0, 3},
      large{4, 24, 5, 2, 0, 0, 14, 0, 4}, in_place{5, 25, 6, 1, 1, 0, 15, 0, 5};
  EXPECT_EQ(refusal(aligned, for_aligned), "");
  EXPECT_NE(refusal(odd, for_aligned).find("rows are not aligned as it needs them"), std::string::npos);
  EXPECT_NE(refusal(aligned, large).find("more workspace"), std::string::npos) << refusal(aligned, large);
  for (const auto& [product, algorithm] : {std::pair(aligned, in_place), std::pair(biased, split)})
    EXPECT_NE(refusal(product, algorithm).find("round sums twice"), std::string::npos)
        << refusal(product, algorithm);
  EXPECT_EQ(refusal(aligned, split), "");
  EXPECT_EQ(refusal(wide, split), "");
}

}  // namespace
}  // namespace sluice
