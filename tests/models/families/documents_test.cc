// A row of packed documents computes what the documents compute alone: positions begin anew, and attention
// sees none of what is before.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/data/token_data.h"
#include "models/families/family.h"
#include "tests/support/fixtures.h"
#include "tests/support/interpreter.h"

namespace sluice {
namespace {

constexpr int64_t kSequence = 33, kFirst = 14;  // the second document is longer than a block of positions

struct Device1 {
  const char* name;
  std::unique_ptr<Device> (*make)();
};

// Computes the loss's sum over rows and the gradients of that sum. The row holds packed documents, or one of
// them while the other tokens are ignored.
class DocumentRun {
 public:
  DocumentRun(const Fixture& fixture, const ModelConfig& config, int64_t sequence, bool documents,
              std::unique_ptr<Device> device)
      : model(build_model(config, DType::f32, 1, sequence, documents)), run(model, std::move(device)) {
    run.load(HfWeights::open(fixture.directory, config.family));
  }
  double loss(const std::vector<int32_t>& tokens, const std::vector<int32_t>& labels,
              const std::vector<int32_t>& begins = {}) {
    std::ranges::copy(tokens, run.batch_input("tokens"));
    std::ranges::copy(labels, run.batch_input("labels"));
    if (!begins.empty()) std::ranges::copy(begins, run.batch_input("documents"));
    return run.run(1);
  }

  Model model;
  Interpreter run;
};

void expect_equal_gradients(const DocumentRun& packed, const DocumentRun& first, const DocumentRun& second,
                            const std::string& where) {
  for (const Group& group : packed.model.groups)
    for (const Parameter& p : group.parameters) {
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < element_count(p.shape); ++i) {
        // Position tables of shorter models are the first rows of longer ones'.
        const double wanted =
            static_cast<double>(first.run.gradient(p.name)[i]) + second.run.gradient(p.name)[i];
        difference += std::pow(packed.run.gradient(p.name)[i] - wanted, 2);
        norm += wanted * wanted;
      }
      // fp32 sums over rows in other orders differ by a few units in the last place, 1.2e-7 / 2 each. The
      // bias of k differs by more of its norm: a softmax stays when all its scores move alike, so the
      // summands nearly cancel. It errs by 2.6e-6 with vectors of 256 bits, and by less than 2e-6 with those
      // of 512.
      const double tolerance = p.name.ends_with("k_proj.bias") ? 4e-6 : 2e-6;
      EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << where << ", " << p.name;
    }
}

TEST(PackedDocuments, ComputeWhatTheyComputeAlone) {
  std::vector<int32_t> row(kSequence + 1);
  TokenData::open({kFixtureTokens}, 300).read(0, row.size(), row.data());
  const std::vector<int32_t> first(row.begin(), row.begin() + kFirst),
      second(row.begin() + kFirst, row.end() - 1);
  std::vector<int32_t> labels(row.begin() + 1, row.end());
  labels[kFirst - 1] = kIgnoreLabel;  // the next document's first token
  std::vector<int32_t> begins(kSequence, kFirst);
  std::fill_n(begins.begin(), kFirst, 0);
  const Device1 devices[] = {{"reference", make_reference_device},
                             {"cpu", [] { return make_cpu_device(2); }}};
  for (const Fixture& fixture : fixtures())
    for (const auto& [name, make] : devices) {
      ModelConfig config = config_from_json(fixture.config, fixture.name);
      config.has_router_loss = false;  // that of a row is not the sum of its documents'
      config.capacity_factor = 0;      // nor is what experts take of it
      if (config.rope_scaling.type == RopeType::longrope) continue;  // its frequencies depend on the sequence
      const std::string where = fixture.name + ", " + name;
      DocumentRun packed(fixture, config, kSequence, true, make());
      DocumentRun a(fixture, config, kFirst, false, make()),
          b(fixture, config, kSequence - kFirst, false, make());
      const double wanted = a.loss(first, {labels.begin(), labels.begin() + kFirst}) +
                            b.loss(second, {labels.begin() + kFirst, labels.end()});
      EXPECT_NEAR(packed.loss({row.begin(), row.end() - 1}, labels, begins), wanted, 1e-6 * wanted) << where;
      expect_equal_gradients(packed, a, b, where);
      // A row that is one document is a row without documents.
      DocumentRun one(fixture, config, kSequence, true, make()),
          plain(fixture, config, kSequence, false, make());
      const std::vector<int32_t> all(row.begin(), row.end() - 1);
      EXPECT_EQ(one.loss(all, labels, std::vector<int32_t>(kSequence, 0)), plain.loss(all, labels)) << where;
    }
}

TEST(PackedDocuments, AreAnInputOfTheModelWhereItIsAskedFor) {
  const Model model = build_model(config_from_name("llama:layers=2,width=64,heads=2,vocab=96,context=16"),
                                  DType::f32, 1, 16, true);
  EXPECT_EQ(model.activations[model_input(model, "documents")].shape, (Shape{16}));
  EXPECT_EQ(model.layers[0].segments[0].inputs.size(), 1u);  // no positions are looked up
  EXPECT_EQ(model.layers[1].segments[0].inputs.back(), model_input(model, "documents"));
  const Model plain =
      build_model(config_from_name("llama:layers=2,width=64,heads=2,vocab=96,context=16"), DType::f32, 1, 16);
  EXPECT_THROW(model_input(plain, "documents"), std::invalid_argument);
}

}  // namespace
}  // namespace sluice
