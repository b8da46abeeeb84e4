// Files of adapters, weights merged with them, and the checksum that names a base.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/families/family.h"
#include "models/weights/hf_export.h"
#include "models/weights/hf_weights.h"
#include "models/weights/initial_weights.h"
#include "models/weights/merge.h"
#include "models/weights/peft.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

Model adapted(const std::string& name, const Adapters& adapters) {
  ModelConfig config = config_from_name(name);
  config.adapters = adapters;
  return build_model(config, DType::f32, 1, 8);
}

const Parameter& find(const Model& model, const std::string& name) {
  for (const Group& group : model.groups)
    for (const Parameter& p : group.parameters)
      if (p.name == name) return p;
  throw std::out_of_range(name);
}

// Fills in initial values, which differ from tensor to tensor, also where factors would begin with zeros.
void fill(const Model& model, const std::string& name, uint64_t first, uint64_t count, float* out) {
  Parameter p = find(model, name);
  p.initializer = Initializer::uniform;
  fill_initial(p, 7, first, count, out);
}
std::vector<float> whole(const Model& model, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(element_count(find(model, name).shape)));
  fill(model, name, 0, values.size(), values.data());
  return values;
}

constexpr const char* kModels[][2] = {
    {"gpt2:layers=1,width=32,heads=2,vocab=40,context=16", "h.0.mlp.c_fc"},
    {"llama:layers=1,width=32,heads=2,ffn=48,vocab=40,context=16", "model.layers.0.mlp.up_proj"}};

TEST(MergedWeights, AreTheBaseAndTheProductOfTheFactors) {
  for (const auto& [name, linear] : kModels) {
    const bool in_out = std::string(name).starts_with("gpt2");
    const Adapters settings{.rank = 3, .alpha = 5};
    const Model model = adapted(name, settings);
    const auto read = [&](const std::string& tensor, uint64_t first, uint64_t count, float* out) {
      fill(model, tensor, first, count, out);
    };
    MergedWeights merged(model, settings, read, read);
    const Parameter& p = find(model, linear + std::string(".weight"));
    const std::vector<float> base = whole(model, p.name),
                             a = whole(model, linear + std::string(kAdapterDown)),
                             b = whole(model, linear + std::string(kAdapterUp));
    std::vector<float> all(base.size());
    merged.read(p.name, p.shape, 0, all.size(), all.data());
    const auto columns = static_cast<size_t>(p.shape[1]), in = a.size() / 3;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t o = in_out ? i % columns : i / columns, k = in_out ? i / columns : i % columns;
      double product = 0;
      for (size_t r = 0; r < 3; ++r) product += static_cast<double>(b[o * 3 + r]) * a[r * in + k];
      ASSERT_NEAR(all[i], base[i] + 5.0 / 3 * product, 1e-6) << i;  // fp32 sums of four numbers below 1
    }
    // Ranges that begin and end within rows, and a tensor between.
    for (size_t first = 0; first < all.size(); first += 37) {
      std::vector<float> part(std::min<size_t>(37, all.size() - first));
      merged.read(p.name, p.shape, first, part.size(), part.data());
      for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], all[first + i]);
    }
    const std::string norm = in_out ? "ln_f.weight" : "model.norm.weight";
    std::vector<float> plain(32);
    merged.read(norm, find(model, norm).shape, 0, 32, plain.data());
    EXPECT_EQ(plain, whole(model, norm));
  }
}

class AdapterFiles : public FormatTest {
 protected:
  // Writes tensors of the model as a directory: its adapters if `adapters`, else its base.
  void write(const Model& model, const std::string& to, bool adapters, const ExportOptions& given,
             const std::map<std::string, float>& first_values = {}) const {
    std::vector<ExportTensor> tensors;
    std::vector<std::string> names;
    for (const Group& g : model.groups)
      for (const Parameter& p : g.parameters) {
        if (g.adapter != adapters) continue;
        names.push_back(p.name);
        tensors.push_back(
            {adapters ? peft_name(*find_family(model.family), p.name, false) : p.name, p.shape});
      }
    write_hf_directory(path(to), tensors, given,
                       [&](size_t tensor, uint64_t first, uint64_t count, float* out) {
                         fill(model, names[tensor], first, count, out);
                         for (uint64_t i = 0; i < count; ++i)  // exact in every type
                           out[i] = std::round(64 * out[i]) / 64;
                         const auto changed = first_values.find(names[tensor]);
                         if (changed != first_values.end() && first == 0) out[0] = changed->second;
                       });
  }
};

TEST_F(AdapterFiles, ScalesAreWrittenAsNumbersOfPython) {
  const auto written = [](double alpha) {
    const Adapters settings{.rank = 3, .alpha = alpha};
    return nlohmann::json::parse(
        adapter_config_json(settings, adapted(kModels[0][0], settings), "b"))["lora_alpha"];
  };
  EXPECT_EQ(written(16).dump(), "16");
  EXPECT_EQ(written(4.5).dump(), "4.5");
  EXPECT_EQ(written(1e300).dump(), "1e+300");
}

TEST_F(AdapterFiles, ReadWhatWasWritten) {
  for (const auto& [name, linear] : kModels) {
    const Adapters settings{.rank = 3, .alpha = 4.5, .root_scale = true};
    const Model model = adapted(name, settings);
    const std::string to = std::string("of.") + model.family;
    write(model, to, true,
          {.dtype = DType::f32,
           .file_bytes_max = 100,
           .config_json = adapter_config_json(settings, model, "b"),
           .adapters = true});
    std::vector<std::string> notes;
    const Adapters read = read_adapter_config(path(to), notes);
    EXPECT_EQ(read.rank, 3);
    EXPECT_EQ(read.scale(), settings.scale());
    EXPECT_TRUE(notes.empty());
    const Model again = adapted(name, read);
    const HfWeights weights = HfWeights::open_adapters(path(to), model.family);
    EXPECT_NO_THROW(check_weights(weights, again));
    const std::string factor = linear + std::string(kAdapterDown);
    std::vector<float> values(weights.find(factor)->elements());
    weights.read(factor, 0, values.size(), values.data());
    const std::vector<float> wanted = whole(model, factor);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], std::round(64 * wanted[i]) / 64);
    const auto config = nlohmann::json::parse(read_file(to + "/adapter_config.json"));
    EXPECT_EQ(config["fan_in_fan_out"], model.family == "gpt2");
    EXPECT_EQ(config["base_model_name_or_path"], "b");
    EXPECT_THROW(check_weights(weights, adapted(name, {.rank = 2})), Error);
  }
}

// The weights say which modules have adapters. If the config contradicts them, a note says so.
TEST_F(AdapterFiles, ContradictionsBetweenConfigAndWeightsAreTold) {
  using Words = std::vector<std::string>;
  Words parameters;
  for (const char* module :
       {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"})
    for (const char* factor : {".lora_A.weight", ".lora_B.weight"})
      parameters.push_back(std::string(module) + factor);
  const auto notes = [&](const std::string& config) {
    write_file("adapter_config.json", "{\"peft_type\": \"LORA\", \"target_modules\": " + config + "}");
    return notes_on_targets(directory.string(), parameters);
  };
  const std::string file = path("adapter_config.json") + ": target_modules ";
  EXPECT_EQ(notes(R"(".*_proj")"), Words());
  EXPECT_EQ(notes(R"(["q_proj", "up_proj"])"), Words());
  EXPECT_EQ(notes(R"(["self_attn.q_proj", "model.layers.1.mlp.up_proj"])"), Words());
  EXPECT_EQ(notes(R"(["v_proj", "q_proj", "k_proj", "up_proj"])"),
            Words{file + "has k_proj, v_proj, for which there are no weights: they get no adapters."});
  EXPECT_EQ(notes(R"(["v_proj", "q_proj", "up_proj"], "exclude_modules": "v_proj")"), Words());
  EXPECT_EQ(notes(R"(["proj", "up_proj"])"),
            (Words{file + "has proj, for which there are no weights: they get no adapters.",
                   file + "lacks q_proj, for which there are weights: they have adapters all the same."}));
  EXPECT_EQ(notes(R"(["q_proj"], "target_parameters": ["up_proj"])"), Words());
}

TEST_F(AdapterFiles, ABaseIsKnownByItsValues) {
  const Model model = adapted(kModels[1][0], {.rank = 3});
  write(model, "base", false, {.dtype = DType::f32, .config_json = "{}"});
  write(model, "narrow", false, {.dtype = DType::bf16, .file_bytes_max = 3000, .config_json = "{}"});
  write(model, "other", false, {.dtype = DType::f32, .config_json = "{}"}, {{"model.norm.weight", 3.0f}});
  const auto checksum = [&](const std::string& of) {
    return sampled_checksum(HfWeights::open(path(of), "llama"), model);
  };
  EXPECT_EQ(checksum("base"), checksum("narrow"));
  EXPECT_NE(checksum("base"), checksum("other"));
}

// Keys that are missing have PEFT's defaults.
TEST_F(AdapterFiles, TheLeastConfigOfPeft) {
  write_file("adapter_config.json", R"({"peft_type": "LORA", "target_modules": "all-linear"})");
  std::vector<std::string> notes;
  const Adapters read = read_adapter_config(directory.string(), notes);
  EXPECT_EQ(read.rank, 8);
  EXPECT_EQ(read.scale(), 1);
  EXPECT_TRUE(read.targets.empty());
  write_file("adapter_config.json", "[]");
  expect_error(ExitCode::malformed_file, {"not a JSON object"},
               [&] { read_adapter_config(directory.string(), notes); });
  expect_error(ExitCode::usage, {"lacks adapter_model.safetensors"},
               [&] { HfWeights::open_adapters(directory.string(), "llama"); });
}

}  // namespace
}  // namespace sluice
