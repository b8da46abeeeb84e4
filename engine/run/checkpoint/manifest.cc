#include "engine/run/checkpoint/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "cpu_optim/optimizer.h"
#include "engine/base/error.h"
#include "engine/base/strict_json.h"
#include "engine/run/execute/runner.h"
#include "models/files/safetensors.h"

namespace sluice {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "sluice-checkpoint";
// Version 3 lacks the options that never change bits (OnResume::kept). Older versions lack options or
// checksums that a resume needs. Up to version 5, numerics are 1. Version 5 always has matmul_algorithms.
// Version 6 has no base.
constexpr int64_t kVersion = 7, kWithNumerics = 6, kWithAlgorithms = 5, kOldestRead = 3;
constexpr std::array<DType, 3> kPrecisions = {DType::bf16, DType::f16, DType::f32};
constexpr uint64_t kElementsMax = uint64_t{1} << 56;  // as in graph.cc, so that sums of bytes fit 64 bits
constexpr int64_t kNumberMax = std::numeric_limits<int64_t>::max();
constexpr const char* kRemedy = "Use another checkpoint; this manifest is damaged.";

// Option values may be paths, which need not be UTF-8: such values are stored as lists of bytes.
OrderedJson text_to_json(const std::string& text) {
  try {
    (void)OrderedJson(text).dump();
    return text;
  } catch (const OrderedJson::type_error&) {
    return std::vector<uint8_t>(text.begin(), text.end());
  }
}

OrderedJson tensor_to_json(const Manifest& manifest, const ManifestTensor& tensor) {
  OrderedJson out{{"name", tensor.name}, {"shape", tensor.shape}, {"planes", OrderedJson::object()}};
  for (const ManifestPlane& plane : tensor.planes) {
    OrderedJson pieces = OrderedJson::array();
    for (const ManifestPiece& piece : plane.pieces) {
      OrderedJson entry{
          {"file", manifest.files[piece.file].name}, {"first", piece.first}, {"count", piece.count}};
      if (piece.stored_as != tensor.name) entry["stored_as"] = piece.stored_as;
      pieces.push_back(std::move(entry));
    }
    out["planes"][plane.name] = std::move(pieces);
  }
  return out;
}

// One line a field, and one line an element of a list, so that people can read it.
std::string to_lines(const OrderedJson& object) {
  std::string text = "{";
  for (const auto& [key, value] : object.items()) {
    text += fmt::format("{}\n\"{}\": ", text.size() == 1 ? "" : ",", key);
    if (!value.is_array()) {
      text += value.dump();
      continue;
    }
    text += '[';
    for (size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + value[i].dump();
    text += ']';
  }
  return text + "\n}\n";
}

std::string checksum_text(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

std::string seal_of(std::string_view text) {
  return fmt::format(",\n\"checksum\": \"{}\"\n}}\n", checksum_text(XXH3_64bits(text.data(), text.size())));
}

bool is_sealed(std::string_view text) {
  const size_t seal = seal_of("").size();
  return text.size() > seal && text.substr(text.size() - seal) == seal_of(text.substr(0, text.size() - seal));
}

// Reads typed fields, and says in errors where they are.
class Fields {
 public:
  Fields(const Json& object, const std::string& path, std::string where)
      : object_(object), path_(path), where_(std::move(where)) {
    if (!object.is_object()) malformed("is not an object");
  }

  [[noreturn]] void malformed(const std::string& rest) const {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {} {}.", printable(path_), where_, rest), kRemedy);
  }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) malformed(fmt::format("lacks '{}'", key));
    return *found;
  }
  bool has(const char* key) const { return object_.contains(key); }
  const Json& array(const char* key) const {
    if (!at(key).is_array()) malformed(fmt::format("has a '{}' that is not a list", key));
    return at(key);
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) malformed(fmt::format("has a '{}' that is not a text", key));
    return at(key).get<std::string>();
  }
  uint64_t count(const char* key, uint64_t most) const { return count(at(key), key, most); }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const uint64_t value = count(key, static_cast<uint64_t>(most));
    if (value < static_cast<uint64_t>(least)) out_of_range(key, at(key));
    return static_cast<int64_t>(value);
  }
  uint64_t checksum(const char* key) const {
    const std::string digits = text(key);
    uint64_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits != checksum_text(value) || read.ec != std::errc()) out_of_range(key, at(key));
    return value;
  }
  double finite(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>())) out_of_range(key, value);
    return value.get<double>();
  }
  double positive(const char* key) const {
    if (finite(key) <= 0) out_of_range(key, at(key));
    return finite(key);
  }
  bool flag(const char* key) const {  // false where it is missing
    if (!has(key)) return false;
    if (!at(key).is_boolean()) malformed(fmt::format("has a '{}' that is neither true nor false", key));
    return at(key).get<bool>();
  }
  // A whole number from 0 to `most`.
  uint64_t count(const Json& value, const char* key, uint64_t most) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most) out_of_range(key, value);
    return value.get<uint64_t>();
  }

 private:
  [[noreturn]] void out_of_range(const char* key, const Json& value) const {
    malformed(fmt::format("has '{}' {}, which is out of range", key, shown_name(value.dump())));
  }

  const Json& object_;
  const std::string& path_;
  std::string where_;
};

Json parse(const std::string& text, const std::string& path) {
  try {
    return parse_strict_json(text);
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()), kRemedy);
  }
}

std::string text_from_json(const Json& value, const Fields& option) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) option.malformed("has a value that is not a text");
  std::string text;
  for (const Json& byte : value) text += static_cast<char>(option.count(byte, "values", 255));
  return text;
}

std::vector<ManifestOption> read_options(const Fields& file, const std::string& path) {
  std::vector<ManifestOption> options;
  for (const Json& entry : file.array("options")) {
    const Fields fields(entry, path, "an option of the manifest");
    ManifestOption option{fields.text("name"), {}};
    for (const Json& value : fields.array("values")) option.values.push_back(text_from_json(value, fields));
    options.push_back(std::move(option));
  }
  return options;
}

// The numbers must be possible together: otherwise a resume would silently train something else.
void check_numbers(const Fields& file, const CheckpointState& s) {
  if (s.t != s.step - s.skipped_steps)
    file.malformed(
        fmt::format("counts {} steps, but {} updates and {} skipped steps", s.step, s.t, s.skipped_steps));
  int exponent = 0;
  const bool scaled = s.precision == DType::f16;
  if (scaled ? std::frexp(s.loss_scale, &exponent) != 0.5 || s.loss_scale < 1 : s.loss_scale != 1)
    file.malformed(
        fmt::format("has 'loss_scale' {}, which {} never has", s.loss_scale, dtype_name(s.precision)));
  if (s.clean_steps > (scaled ? std::min(s.t, kCleanStepsToDouble - 1) : 0))
    file.malformed(fmt::format("has 'clean_steps' {}, which is out of range", s.clean_steps));
}

// Numbers that are also given by options must agree with these options. A run's manifest has all options
// (apply_manifest).
void check_agrees(const Fields& file, const CheckpointState& s) {
  const auto value = [&](const char* name) -> std::optional<std::string> {
    for (const ManifestOption& option : s.options)
      if (option.name == name && option.values.size() == 1) return option.values.front();
    return std::nullopt;
  };
  const auto agree = [&](const char* option, const std::string& expected, const char* what) {
    if (const auto found = value(option); found && *found != expected)
      file.malformed(fmt::format("has {} '{}', but its option --{} is '{}'", what, expected, option,
                                 shown_name(*found)));
  };
  agree("precision", dtype_name(s.precision), "precision");
  agree("optimizer", optimizer_of(s.optimizer).name, "optimizer");
  agree("micro-batch", std::to_string(s.micro_batch), "micro_batch");
  const std::optional<std::string> batch = value("batch");
  if (!batch) return;
  uint64_t rows = 0, cursor = 0;
  const auto read = std::from_chars(batch->data(), batch->data() + batch->size(), rows);
  if (read.ec != std::errc() || rows == 0 || rows % static_cast<uint64_t>(s.micro_batch) != 0)
    file.malformed(fmt::format("has 'micro_batch' {}, which does not divide --batch '{}'", s.micro_batch,
                               shown_name(*batch)));
  if (__builtin_mul_overflow(static_cast<uint64_t>(s.step), rows, &cursor) || cursor != s.cursor)
    file.malformed(fmt::format("has 'cursor' {}, but {} steps of {} rows", s.cursor, s.step, rows));
}

CheckpointState read_state(const Fields& file, const std::string& path, int64_t version) {
  CheckpointState state;
  if (file.has("run")) state.run = file.checksum("run");
  state.step = file.integer("step", 0, kNumberMax);
  state.t = file.integer("t", 0, state.step);
  state.loss_scale = file.positive("loss_scale");
  state.clean_steps = file.integer("clean_steps", 0, state.step);
  state.skipped_steps = file.integer("skipped_steps", 0, state.step);
  state.cursor = file.count("cursor", std::numeric_limits<uint64_t>::max());
  state.tokens = file.count("tokens", std::numeric_limits<uint64_t>::max());
  state.data_checksum = file.checksum("data_checksum");
  state.micro_batch = file.integer("micro_batch", 1, kNumberMax);
  state.numerics = version < kWithNumerics ? 1 : file.integer("numerics", 1, kNumerics);
  if (version == kWithAlgorithms || (version >= kWithNumerics && file.has("matmul_algorithms")))
    state.matmul_algorithms = file.text("matmul_algorithms");
  const std::string precision = file.text("precision");
  const auto found = std::find_if(kPrecisions.begin(), kPrecisions.end(),
                                  [&](DType type) { return precision == dtype_name(type); });
  if (found == kPrecisions.end())
    file.malformed(fmt::format("has the unknown precision '{}'", shown_name(precision)));
  state.precision = *found;
  const std::string optimizer = file.text("optimizer");
  int kind = 0;
  while (kind < kOptimizerKinds && optimizer != optimizer_of(static_cast<OptimizerKind>(kind)).name) ++kind;
  if (kind == kOptimizerKinds)
    file.malformed(fmt::format("has the unknown optimizer '{}'", shown_name(optimizer)));
  state.optimizer = static_cast<OptimizerKind>(kind);
  state.model_config = file.text("model_config");
  if (version == kVersion && file.has("base")) {
    const Fields base(file.at("base"), path, "the base of the manifest");
    state.base = {text_from_json(base.at("directory"), base), base.checksum("checksum")};
  }
  if (version == kVersion && file.has("validation")) {
    const Fields validation(file.at("validation"), path, "the validation of the manifest");
    state.validation = {validation.finite("loss"), validation.integer("tokens", 1, kNumberMax),
                        validation.checksum("data_checksum")};
  }
  state.pending_validation = file.flag("pending_validation");
  state.pending_samples = file.flag("pending_samples");
  state.options = read_options(file, path);
  check_numbers(file, state);
  check_agrees(file, state);
  return state;
}

bool is_bare(const std::string& name) {
  const auto forbidden = [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' '; };
  return !name.empty() && name != "." && name.find("..") == std::string::npos &&
         std::none_of(name.begin(), name.end(), forbidden);
}

void read_sections(const Fields& fields, const std::string& path, ManifestFile& file) {
  uint64_t left = file.bytes;
  for (const Json& entry : fields.array("sections")) {
    const Fields section(entry, path, fmt::format("a section of '{}'", shown_name(file.name)));
    file.sections.push_back({section.count("bytes", left), section.checksum("checksum")});
    left -= file.sections.back().bytes;
    if (file.sections.back().bytes == 0) section.malformed("is empty");
  }
  if (left > 0)
    fields.malformed(fmt::format("has {} bytes that are in no section: '{}'", left, shown_name(file.name)));
}

using FileIndex = std::unordered_map<std::string, uint32_t>;

FileIndex read_files(const Fields& file, const std::string& path, std::vector<ManifestFile>& files) {
  FileIndex index;
  for (const Json& entry : file.array("files")) {
    const Fields fields(entry, path, "a file of the manifest");
    const std::string name = fields.text("name");
    if (!is_bare(name))
      fields.malformed(fmt::format("is '{}', which is no bare file name", shown_name(name)));
    if (!index.emplace(name, static_cast<uint32_t>(files.size())).second)
      fields.malformed(fmt::format("is listed twice: '{}'", shown_name(name)));
    files.push_back({name, fields.count("bytes", static_cast<uint64_t>(kNumberMax)), {}});
    read_sections(fields, path, files.back());
  }
  return index;
}

// Reads the pieces of one plane and sorts them; they must cover `elements` elements exactly once.
std::vector<ManifestPiece> read_pieces(const Fields& planes, const char* plane, const std::string& path,
                                       const ManifestTensor& tensor, uint64_t elements,
                                       const FileIndex& files) {
  const std::string where = fmt::format("{} of tensor '{}'", plane, shown_name(tensor.name));
  std::vector<ManifestPiece> pieces;
  for (const Json& entry : planes.array(plane)) {
    const Fields fields(entry, path, "a piece of " + where);
    const auto file = files.find(fields.text("file"));
    if (file == files.end())
      fields.malformed(
          fmt::format("is in '{}', which the manifest does not list", shown_name(fields.text("file"))));
    const uint64_t first = fields.count("first", elements);
    const uint64_t count = fields.count("count", elements - first);
    if (count == 0) fields.malformed("is empty");
    pieces.push_back(
        {file->second, fields.has("stored_as") ? fields.text("stored_as") : tensor.name, first, count});
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const ManifestPiece& a, const ManifestPiece& b) { return a.first < b.first; });
  uint64_t end = 0;
  for (const ManifestPiece& piece : pieces) {
    if (piece.first != end)
      planes.malformed(fmt::format("have pieces of {} that {} before element {}", plane,
                                   piece.first < end ? "overlap" : "leave a hole",
                                   std::max(end, piece.first)));
    end += piece.count;
  }
  if (end != elements)
    planes.malformed(fmt::format("have pieces of {} that cover {} of {} elements", plane, end, elements));
  return pieces;
}

ManifestTensor read_tensor(const Json& entry, const std::string& path, const FileIndex& files,
                           const std::vector<StoredPlane>& stored) {
  const Fields fields(entry, path, "a tensor of the manifest");
  ManifestTensor tensor{fields.text("name"), {}, {}};
  uint64_t elements = 1;
  for (const Json& dimension : fields.array("shape")) {
    const uint64_t size = fields.count(dimension, "shape", kElementsMax / elements);
    if (size == 0) fields.malformed(fmt::format("is empty: '{}'", shown_name(tensor.name)));
    tensor.shape.push_back(static_cast<int64_t>(size));
    elements *= size;
  }
  const Fields planes(fields.at("planes"), path,
                      fmt::format("the planes of tensor '{}'", shown_name(tensor.name)));
  for (const StoredPlane& plane : stored)
    if (plane.what == Owned::state && planes.has(plane.name))
      tensor.planes.push_back({plane.name, read_pieces(planes, plane.name, path, tensor, elements, files)});
  return tensor;
}

}  // namespace

std::string manifest_to_json(const Manifest& manifest) {
  const CheckpointState& state = manifest.state;
  CHECK(std::isfinite(state.loss_scale), "a checkpoint with a loss scale that is not finite");
  OrderedJson options = OrderedJson::array();
  for (const ManifestOption& option : state.options) {
    OrderedJson values = OrderedJson::array();
    for (const std::string& value : option.values) values.push_back(text_to_json(value));
    options.push_back({{"name", option.name}, {"values", std::move(values)}});
  }
  OrderedJson files = OrderedJson::array(), tensors = OrderedJson::array();
  for (const ManifestFile& file : manifest.files) {
    OrderedJson sections = OrderedJson::array();
    for (const ManifestSection& section : file.sections)
      sections.push_back({{"bytes", section.bytes}, {"checksum", checksum_text(section.checksum)}});
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sections", std::move(sections)}});
  }
  for (const ManifestTensor& tensor : manifest.tensors) tensors.push_back(tensor_to_json(manifest, tensor));
  OrderedJson out{{"format", kFormat},
                  {"version", kVersion},
                  {"numerics", kNumerics},
                  {"run", checksum_text(state.run)},
                  {"step", state.step},
                  {"t", state.t},
                  {"loss_scale", state.loss_scale},
                  {"clean_steps", state.clean_steps},
                  {"skipped_steps", state.skipped_steps},
                  {"cursor", state.cursor},
                  {"tokens", state.tokens},
                  {"data_checksum", checksum_text(state.data_checksum)},
                  {"micro_batch", state.micro_batch},
                  {"precision", dtype_name(state.precision)},
                  {"optimizer", optimizer_of(state.optimizer).name},
                  {"writers", manifest.state.writers},
                  {"model_config", state.model_config}};
  if (!state.matmul_algorithms.empty()) out["matmul_algorithms"] = state.matmul_algorithms;
  if (state.base)
    out["base"] = {{"directory", text_to_json(state.base->directory)},
                   {"checksum", checksum_text(state.base->checksum)}};
  if (state.validation)
    out["validation"] = {{"loss", state.validation->loss},
                         {"tokens", state.validation->tokens},
                         {"data_checksum", checksum_text(state.validation->data_checksum)}};
  if (state.pending_validation) out["pending_validation"] = true;
  if (state.pending_samples) out["pending_samples"] = true;
  out["options"] = std::move(options);
  out["files"] = std::move(files);
  out["tensors"] = std::move(tensors);
  return sealed(to_lines(out));
}

std::string sealed(std::string object) {
  object.resize(object.find_last_not_of(" \n", object.rfind('}') - 1) + 1);
  return object + seal_of(object);
}

Manifest manifest_from_json(const std::string& text, const std::string& path) {
  const Json json = parse(text, path);
  const Fields file(json, path, "the manifest");
  if (file.text("format") != kFormat) file.malformed("is not that of a Sluice checkpoint");
  const auto version = static_cast<int64_t>(file.count("version", static_cast<uint64_t>(kNumberMax)));
  if (version < kOldestRead || version > kVersion)
    throw Error(ExitCode::malformed_file,
                fmt::format("{}: the manifest has format version {}; this command reads versions {} to {}.",
                            printable(path), version, kOldestRead, kVersion),
                "Use the version of Sluice that wrote the checkpoint.");
  if (!is_sealed(text)) file.malformed("is not as it was written: its checksum differs");
  Manifest manifest;
  manifest.state = read_state(file, path, version);
  manifest.state.writers = file.integer("writers", 1, kNumberMax);
  const FileIndex files = read_files(file, path, manifest.files);
  const std::vector<StoredPlane> stored = stored_planes(manifest.state.optimizer, manifest.state.precision);
  std::unordered_set<std::string> names;
  for (const Json& entry : file.array("tensors")) {
    manifest.tensors.push_back(read_tensor(entry, path, files, stored));
    if (!names.insert(manifest.tensors.back().name).second)
      file.malformed(fmt::format("lists tensor '{}' twice", shown_name(manifest.tensors.back().name)));
  }
  return manifest;
}

}  // namespace sluice
