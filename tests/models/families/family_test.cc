// The registry: what every row must have, and what other places must have for it. A new family is covered
// without a line here; if something of it is missing, the failure names the place.
#include "models/families/family.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "engine/base/file.h"
#include "models/families/config.h"
#include "tests/support/families.h"
#include "tests/support/family_support.h"
#include "tests/support/fixtures.h"

namespace sluice {
namespace {

TEST(Families, RowsAreCompleteAndNamesUnique) {
  std::set<std::string> names, presets;
  for (const Family* family : families()) {
    EXPECT_TRUE(names.insert(family->name).second) << family->name;
    EXPECT_EQ(find_family(family->name), family);
    EXPECT_STRNE(family->title, "") << family->name;
    EXPECT_STRNE(family->architecture, "") << family->name;
    const std::vector<Preset> own = family->presets();
    EXPECT_TRUE(std::ranges::any_of(
        own, [&](const Preset& p) { return std::string_view(p.name) == family->plain_preset; }))
        << family->name << " has no preset " << family->plain_preset;
    for (const Preset& preset : own) {
      EXPECT_TRUE(presets.insert(preset.name).second) << preset.name;
      EXPECT_TRUE(*preset.alias == '\0' || presets.insert(preset.alias).second) << preset.alias;
      const Family* namesake = find_family(preset.name);
      EXPECT_TRUE(namesake == nullptr || namesake == family) << preset.name << " names another family";
    }
    std::set<std::string> keys;
    for (const SizeKey& key : size_keys(*family)) {
      EXPECT_TRUE(keys.insert(key.name).second) << family->name << " has the key " << key.name << " twice";
      EXPECT_STRNE(key.help, "") << key.name;
    }
  }
  for (const std::string_view planned : planned_families())
    EXPECT_EQ(names.count(std::string(planned)), 0u)
        << planned << " is built: take it from planned_families in models/families/family.cc";
}

TEST(Families, PresetsHaveThePublishedParameters) {
  for (const Family* family : families())
    for (const Preset& preset : family->presets()) {
      const ModelConfig config = config_from_name(preset.name);
      EXPECT_EQ(config.family, family->name) << preset.name;
      EXPECT_EQ(parameter_count(build_model(config, DType::bf16, 1, 8)), preset.parameters)
          << preset.name << ": its row in models/families/" << family->name << ".cc says otherwise";
    }
}

TEST(Families, AnAliasIsThePreset) {
  for (const Family* family : families())
    for (const Preset& preset : family->presets())
      if (*preset.alias != '\0') expect_equal(config_from_name(preset.alias), config_from_name(preset.name));
}

TEST(Families, DescriptionsGiveEverySize) {
  for (const Family* family : families())
    for (const Preset& preset : family->presets()) {
      const std::string text = described(*family, preset.config);
      const ModelConfig read = config_from_name(text);
      EXPECT_EQ(described(*family, read), text);
      EXPECT_EQ(parameter_count(build_model(read, DType::bf16, 1, 8)), preset.parameters) << text;
    }
}

// A prefix or buffer name that matches a parameter's own name would lose that parameter.
TEST(Families, ParametersKeepTheirNames) {
  for (const Family* family : families())
    for (const Group& group : build_model(config_from_name(family->plain_preset), DType::bf16, 1, 8).groups)
      for (const Parameter& parameter : group.parameters) {
        EXPECT_FALSE(family->is_buffer(parameter.name)) << parameter.name;
        for (const std::string_view prefix :
             {family->tensor_prefix, family->nested.tensor_prefix, family->nested.older_prefix})
          EXPECT_TRUE(prefix.empty() || !parameter.name.starts_with(prefix)) << parameter.name;
      }
}

TEST(Families, EveryOneIsComparedWithPyTorch) {
  std::set<std::string> compared;
  for (const Fixture& fixture : fixtures())
    compared.insert(config_from_json(fixture.config, fixture.directory).family);
  for (const Family* family : families())
    EXPECT_EQ(compared.count(family->name), 1u)
        << "tests/fixtures has no model of the family " << family->name
        << ": describe one in tools/fixtures/families/hugging_face.py, then run"
        << " tools/fixtures/make_fixtures.py " << family->name;
}

TEST(Families, TheReadmeNamesEveryOne) {
  const std::string readme = read_text_file("README.md", 1 << 20);
  for (const Family* family : families())
    EXPECT_NE(readme.find(family->title), std::string::npos)
        << "README.md does not name the family " << family->title;
}

}  // namespace
}  // namespace sluice
