#include "engine/run/start/model_source.h"

#include <filesystem>
#include <system_error>

#include "engine/base/error.h"
#include "models/families/family.h"
#include "models/files/file.h"
#include "models/weights/hf_weights.h"

namespace sluice {

namespace {

constexpr uint64_t kConfigBytesMax = 1 << 20;

}  // namespace

ModelSource resolve_model(const ModelOptions& options) {
  ModelSource source;
  const std::filesystem::path path(options.model);
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(path, ignored);
  const bool file_name =
      std::filesystem::exists(path, ignored) || path.has_parent_path() || path.extension() == ".json";
  if (!file_name) {
    source.config = config_from_name(options.model);
    return source;
  }
  if (directory && !std::filesystem::exists(path / "config.json", ignored))
    throw Error(ExitCode::usage, "The directory " + printable(options.model) + " has no config.json.",
                "Give a Hugging Face directory; `sluice export` makes one of a run.");
  const std::string file = directory ? (path / "config.json").string() : path.string();
  source.config = config_from_json(read_text_file(file, kConfigBytesMax), file);
  if (directory) source.directory = options.model;
  if (directory && !options.from_scratch && has_weights(options.model)) {
    source.weights_directory = options.model;
    source.table_bytes = table_bytes_at_most(options.model);
  }
  return source;
}

}  // namespace sluice
