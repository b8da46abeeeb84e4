#include "tests/fuzz/seeds.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/families/family.h"
#include "models/files/safetensors.h"
#include "tests/models/text/template/template_cases.h"
#include "tests/support/families.h"
#include "tests/support/fixtures.h"

namespace sluice::fuzzing {

namespace {

namespace fs = std::filesystem;
using Seeds = std::vector<std::string>;

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// The files of a folder that `is_wanted`, by name.
template <typename IsWanted>
Seeds files_in(const fs::path& folder, const IsWanted& is_wanted) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_wanted(entry.path())) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  Seeds seeds;
  for (const fs::path& path : paths) seeds.push_back(bytes_of_file(path));
  return seeds;
}

Seeds tokenizers() {
  return files_in("tests/fixtures/tokenizers", [](const fs::path& path) {
    return path.stem() != "hashes" && path.stem() != "strings";  // these two are of texts
  });
}

Seeds chat_templates() {
  Seeds seeds = {bytes_of_file("tests/fixtures/fine_tuning/model/chat_template.jinja")};
  testing::for_each_case("tests/fixtures/chat_templates/cases.json", [&](const testing::TemplateCase& c) {
    seeds.push_back(c.source + '\0' + c.variables.dump());
  });
  return seeds;
}

Seeds records() { return {bytes_of_file("tests/fixtures/fine_tuning/chats.jsonl").substr(0, 2000)}; }

Seeds safetensors() {
  const std::vector<TensorSpec> specs = {
      {"a.weight", DType::f32, {2, 3}}, {"b", DType::bf16, {5}}, {"scale", DType::f32, {}}};
  const SafetensorsLayout layout = lay_out_safetensors(specs, {{"step", "3"}}, kExportAlignment);
  return {layout.header + std::string(layout.file_bytes - layout.header.size(), '\1')};
}

Seeds model_configs() {
  Seeds seeds;
  for (const Fixture& fixture : fixtures()) seeds.push_back(fixture.config);
  return seeds;
}

Seeds model_descriptions() {
  Seeds seeds;
  for (const Family* family : families())
    seeds.push_back(described(*family, family->presets().front().config));
  return seeds;
}

Seeds machines() {
  const std::string page = bytes_of_file("docs/machine.md");
  const size_t begin = page.find("```json\n") + 8;
  return {page.substr(begin, page.find("```", begin) - begin),
          bytes_of_file("engine/rates/machines/rtx-4090.json")};
}

Seeds config_files() {
  return {
      "# a run\nmodel = \"gpt2:layers=2\"\ndata = [\"a.bin\", 'b.bin',\n  # more\n]\nlr = 3e-4\n"
      "steps = 1_000\nfrom-scratch = true\nout = \"runs/\\\"first\\\"\"\n"};
}

}  // namespace

std::vector<std::string> seeds_of(const std::string& target) {
  static const std::map<std::string, Seeds (*)()> kMade = {{"tokenizer", tokenizers},
                                                           {"chat_template", chat_templates},
                                                           {"records", records},
                                                           {"safetensors", safetensors},
                                                           {"model_config", model_configs},
                                                           {"model_description", model_descriptions},
                                                           {"machine", machines},
                                                           {"config_file", config_files}};
  Seeds seeds;
  if (const auto made = kMade.find(target); made != kMade.end()) seeds = made->second();
  if (const fs::path corpus = "tests/fuzz/corpus/" + target; fs::exists(corpus))
    std::ranges::move(files_in(corpus, [](const fs::path&) { return true; }), std::back_inserter(seeds));
  return seeds;
}

}  // namespace sluice::fuzzing
