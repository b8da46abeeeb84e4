// gpt-oss in MXFP4. Experts are as transformers makes them, whichever files hold blocks and scales.
#include <fmt/format.h>
#include <malloc.h>

#include <array>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "engine/base/file.h"
#include "models/families/family.h"
#include "models/weights/hf_weights.h"
#include "models/weights/stacked.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

const std::string kFolder = "tests/fixtures/mxfp4/";
constexpr const char* kGate = "model.layers.0.mlp.experts.gate_up_proj";

class Mxfp4Weights : public FormatTest {
 protected:
  void write(const std::string& file, const std::vector<TensorSpec>& specs) const {
    SafetensorsWriter writer(path(file), specs, {}, kExportAlignment);
    for (const TensorSpec& spec : specs) {
      const std::string bytes(static_cast<size_t>(element_count(spec.shape)) * dtype_bytes(spec.dtype), 0x22);
      writer.write(bytes.data(), bytes.size());
    }
    writer.finish();
  }
  HfWeights opened() const { return HfWeights::open(directory.string(), "gpt_oss"); }
};

TEST_F(Mxfp4Weights, ExpertsAreThoseOfTransformers) {
  const ModelConfig config =
      config_from_json(read_text_file(kFolder + "model/config.json", 1 << 16), "config.json");
  const Model model = build_model(config, DType::bf16, 1, 8);
  const HfWeights weights = HfWeights::open(kFolder + "model", "gpt_oss");
  ASSERT_NO_THROW(check_weights(weights, model));
  const SafetensorsFile file = SafetensorsFile::open(kFolder + "experts.safetensors");
  size_t compared = 0;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    std::vector<float> all(tensor.elements());
    file.read_f32(tensor, 0, all.size(), all.data());
    for (const TensorPart& part : stacked_parts(*find_family("gpt_oss"), tensor.name, tensor.shape)) {
      ASSERT_EQ(weights.find(part.parameter)->shape, part.shape) << part.parameter;
      std::vector<float> values(part.elements());
      weights.read(part.parameter, 0, values.size(), values.data());
      for (uint64_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], all[part.skip + i * part.step]) << part.parameter << " " << i;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2u * 3 * 3);  // layers, experts, matrices
}

TEST_F(Mxfp4Weights, BlocksAndScalesMayLieInDifferentFiles) {
  write("a.safetensors", {{std::string(kGate) + "_blocks", DType::u8, {2, 4, 1, 16}}});
  write("b.safetensors", {{std::string(kGate) + "_scales", DType::u8, {2, 4, 1}}});
  write_file("model.safetensors.index.json",
             R"({"weight_map":{"model.layers.0.mlp.experts.gate_up_proj_blocks":"a.safetensors",)"
             R"("model.layers.0.mlp.experts.gate_up_proj_scales":"b.safetensors"}})");
  const HfWeights weights = opened();
  EXPECT_EQ(weights.names().size(), 4u);
  EXPECT_EQ(weights.find("model.layers.0.mlp.experts.1.up_proj.weight")->shape, (Shape{32, 2}));
}

TEST_F(Mxfp4Weights, WhatDoesNotFitIsSaid) {
  const std::string blocks = std::string(kGate) + "_blocks", scales = std::string(kGate) + "_scales";
  write("model.safetensors", {{blocks, DType::u8, {2, 4, 1, 16}}, {scales, DType::u8, {2, 4, 2}}});
  expect_error(
      ExitCode::malformed_file,
      {"gate_up_proj_blocks' U8 [2, 4, 1, 16] and ", "gate_up_proj_scales' U8 [2, 4, 2] are no blocks"},
      [&] { opened(); });
  write("model.safetensors", {{blocks, DType::u8, {2, 4, 1, 16}}});
  EXPECT_EQ(opened().names(), std::vector<std::string>{blocks}) << "an unknown tensor";
  write("model.safetensors", {{scales, DType::u8, {2, 4, 1}}});
  EXPECT_EQ(opened().names(), std::vector<std::string>{scales});
  write(
      "model.safetensors",
      {{blocks, DType::u8, {2, 4, 1, 16}}, {scales, DType::u8, {2, 4, 1}}, {kGate, DType::bf16, {2, 32, 4}}});
  expect_error(ExitCode::malformed_file, {"twice, under two names"}, [&] { opened(); });
}

// Bytes that the process has read from files so far; nothing where the system does not say.
std::optional<uint64_t> bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  uint64_t bytes = 0;
  if (!(file >> key >> bytes) || key != "rchar:") return {};
  return bytes;
}

// A layer of 2 experts, as large as a quarter of gpt-oss-20b's: a matrix has 1440 x 1440 elements.
class ReadOfMxfp4 : public Mxfp4Weights {
 protected:
  static constexpr int64_t kWidth = 1440, kGroups = kWidth / 32;
  static constexpr uint64_t kElements = kWidth * kWidth, kStored = 3 * kElements / 32 * 17;  // of an expert

  void SetUp() override {
    const std::string experts = "model.layers.0.mlp.experts.";
    const auto random = [](size_t bytes, int least, int most) {
      std::mt19937 generator(3);
      std::string text(bytes, 0);
      for (char& c : text) c = static_cast<char>(least + generator() % (most - least + 1));
      return text;
    };
    std::vector<TensorSpec> specs;
    for (const auto& [name, rows] : {std::pair{"gate_up_proj", 2 * kWidth}, {"down_proj", kWidth}}) {
      specs.push_back({experts + name + "_blocks", DType::u8, {2, rows, kGroups, 16}});
      specs.push_back({experts + name + "_scales", DType::u8, {2, rows, kGroups}});
    }
    SafetensorsWriter writer(path("model.safetensors"), specs, {}, kExportAlignment);
    for (const TensorSpec& spec : specs) {
      const bool scales = spec.name.ends_with("_scales");
      const std::string bytes =
          random(static_cast<size_t>(element_count(spec.shape)), scales ? 100 : 0, scales ? 140 : 255);
      writer.write(bytes.data(), bytes.size());
    }
    writer.finish();
    if (!bytes_read()) GTEST_SKIP() << "/proc/self/io does not say what was read";
  }
  static std::vector<std::string> matrices(int expert) {
    std::vector<std::string> names;
    for (const char* matrix : {"gate_proj", "up_proj", "down_proj"})
      names.push_back(fmt::format("model.layers.0.mlp.experts.{}.{}.weight", expert, matrix));
    return names;
  }
};

// Reads as a session loads: one expert after the other, each by threads that take pieces of 16384 elements.
// Stored bytes are read once, and the pieces together are the whole.
TEST_F(ReadOfMxfp4, LoadingReadsWhatIsStoredOnce) {
  constexpr uint64_t kPiece = 16384, kAll = 3 * kElements;
  const HfWeights weights = opened();
  std::array<std::vector<float>, 2> loaded;
  const uint64_t before = *bytes_read();
  for (int expert = 0; expert < 2; ++expert) {
    const std::vector<std::string> names = matrices(expert);
    std::vector<float>& values = loaded[expert];
    values.resize(kAll);
    const auto load_pieces = [&](uint64_t from, uint64_t to) {  // each may cover two matrices
      for (uint64_t at = from; at < to;) {
        const uint64_t matrix = at / kElements, first = at % kElements;
        const uint64_t end = std::min({(at / kPiece + 1) * kPiece, (matrix + 1) * kElements, to});
        weights.read(names[matrix], first, end - at, values.data() + at);
        at = end;
      }
    };
    std::thread other([&] { load_pieces(kAll / 2, kAll); });
    load_pieces(0, kAll / 2);
    other.join();
  }
  EXPECT_LE(*bytes_read() - before, 2 * kStored * 11 / 10);
  for (int expert = 0; expert < 2; ++expert)
    for (size_t m = 0; m < 3; ++m) {
      std::vector<float> whole(kElements);
      weights.read(matrices(expert)[m], 0, kElements, whole.data());
      for (size_t i = 0; i < kElements; ++i)
        ASSERT_EQ(loaded[expert][m * kElements + i], whole[i]) << expert << " " << m << " " << i;
    }
}

// Reads as sampled_checksum() does, some ranges of each tensor, and as start_facts() does, a few rows at both
// ends.
TEST_F(ReadOfMxfp4, SamplesReadNoMoreThanAll) {
  const HfWeights weights = opened();
  std::vector<float> values(1024);
  uint64_t before = *bytes_read();
  for (const std::string& name : matrices(0))
    for (uint64_t k = 0; k < 8; ++k) weights.read(name, (kElements - 1024) / 7 * k, 1024, values.data());
  EXPECT_LE(*bytes_read() - before, kStored * 11 / 10);
  before = *bytes_read();
  for (const std::string& name : matrices(1))
    for (const uint64_t first : {uint64_t{0}, kElements - 64}) weights.read(name, first, 64, values.data());
  constexpr uint64_t kRows = 2 * (2 * 127 + 64);  // at both ends: 64 rows, of gate and up those between them
  EXPECT_LE(*bytes_read() - before, kRows * kGroups * 17 * 11 / 10);
}

// The reader keeps no more memory than budgets count for it.
TEST_F(ReadOfMxfp4, NoMoreIsKeptThanIsCounted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate otherwise";
#endif
  const HfWeights weights = opened();
  std::vector<float> value(1024);
  const auto taken = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = taken();
  for (const int expert : {0, 1, 0})
    for (const std::string& name : matrices(expert)) weights.read(name, 7, 1024, value.data());
  const size_t kept = taken() - before;
  constexpr size_t kHeads = 2 * 4096;  // of two large allocations
  EXPECT_LE(kept, Mxfp4Reader::bytes_most(2 * kElements) + kHeads);
  EXPECT_GE(kept, kStored) << "or it need not be counted";
}

std::string config_with(const std::string& quantization, const char* family = "gpt_oss") {
  std::string json = config_to_json(config_from_name(std::string(family) + ":layers=2"), DType::bf16);
  return json.insert(json.find('{') + 1, "\"quantization_config\": " + quantization + ",");
}

TEST_F(Mxfp4Weights, OtherQuantizationsAreRefused) {
  EXPECT_NO_THROW(
      config_from_json(config_with(R"({"quant_method": "mxfp4", "modules_to_not_convert": []})"), "c"));
  EXPECT_NO_THROW(config_from_json(config_with("null"), "c"));
  const auto refused = [](const std::string& json, const std::string& part) {
    expect_error(ExitCode::malformed_file, {part}, [&] { config_from_json(json, "c"); });
  };
  refused(config_with(R"({"quant_method": "fp8"})"), "quant_method \"fp8\" is not supported, only \"mxfp4\"");
  refused(config_with("{}"), "quant_method is missing");
  refused(config_with("3"), "quantization_config is 3");
  refused(config_with(R"({"quant_method": "mxfp4"})", "qwen3_moe"), "quantization_config is");
}

}  // namespace
}  // namespace sluice
