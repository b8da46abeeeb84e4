#include "models/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/simd/convert.h"

namespace sluice {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using Json = nlohmann::json;

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr uint64_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

struct TypeRow {
  SafetensorsType type;
  const char* name;
  uint64_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array<TypeRow, 8> kTypes = {{
    {SafetensorsType::f64, "F64", 8, DType::f64},
    {SafetensorsType::f32, "F32", 4, DType::f32},
    {SafetensorsType::f16, "F16", 2, DType::f16},
    {SafetensorsType::bf16, "BF16", 2, DType::bf16},
    {SafetensorsType::i64, "I64", 8, std::nullopt},
    {SafetensorsType::i32, "I32", 4, DType::i32},
    {SafetensorsType::u8, "U8", 1, DType::u8},
    {SafetensorsType::boolean, "BOOL", 1, std::nullopt},
}};

const TypeRow& row_of(SafetensorsType type) { return kTypes[static_cast<size_t>(type)]; }

[[noreturn]] void malformed(const std::string& path, const std::string& sentence) {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), sentence),
              "Download or export the file again; it is damaged or not a safetensors file.");
}

// One tensor as the header states it, before anything is checked.
struct Entry {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;  // begin, end
  bool has_type = false, has_shape = false, has_offsets = false;
};

// Receives the header's JSON piece by piece: memory stays in proportion to the tensors, duplicate keys are
// noticed, and nesting beyond the format's ends the parse at once.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderHandler(const std::string& path) : path_(path) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(size_t) override {
    if (where_ == Where::start)
      where_ = Where::header;
    else if (where_ == Where::header && key_ == kMetadataKey)
      where_ = Where::metadata;
    else if (where_ == Where::header) {
      where_ = Where::tensor;
      entries.emplace_back().name = key_;
    } else
      unexpected("an object");
    return true;
  }
  bool end_object() override {
    if (where_ == Where::tensor) {
      const Entry& entry = entries.back();
      if (!entry.has_type || !entry.has_shape || !entry.has_offsets)
        malformed(path_, fmt::format("tensor '{}' lacks its {}", shown_name(entry.name),
                                     !entry.has_type    ? "dtype"
                                     : !entry.has_shape ? "shape"
                                                        : "data_offsets"));
    }
    where_ = where_ == Where::header ? Where::end : Where::header;
    return true;
  }
  bool key(std::string& name) override {
    key_ = name;
    if (where_ == Where::header && !names_.insert(name).second)
      malformed(path_, fmt::format("its header has the name '{}' twice", shown_name(name)));
    if (where_ == Where::metadata && metadata.contains(name))
      malformed(path_, fmt::format("its metadata has the key '{}' twice", shown_name(name)));
    if (where_ == Where::tensor) start_field(entries.back());
    return true;
  }
  bool start_array(size_t) override {
    if (where_ == Where::tensor && key_ == "shape")
      where_ = Where::shape;
    else if (where_ == Where::tensor && key_ == "data_offsets")
      where_ = Where::offsets;
    else
      unexpected("an array");
    return true;
  }
  bool end_array() override {
    if (where_ == Where::offsets && entries.back().offsets.size() != 2)
      malformed(path_, fmt::format("data_offsets of tensor '{}' are not two numbers",
                                   shown_name(entries.back().name)));
    where_ = Where::tensor;
    return true;
  }
  bool string(std::string& value) override {
    if (where_ == Where::metadata)
      metadata.emplace(key_, value);
    else if (where_ == Where::tensor && key_ == "dtype")
      set_type(entries.back(), value);
    else
      unexpected("a string");
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (where_ == Where::shape)
      entries.back().shape.push_back(value);
    else if (where_ == Where::offsets && entries.back().offsets.size() < 2)
      entries.back().offsets.push_back(value);
    else
      unexpected("a number");
    return true;
  }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { unexpected("a number that is no 64-bit integer"); }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool binary(Json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    malformed(path_, fmt::format("its header is not valid JSON or not valid UTF-8 at byte {}",
                                 kLengthBytes + position - 1));
  }

 private:
  enum class Where { start, header, metadata, tensor, shape, offsets, end };

  [[noreturn]] void unexpected(const char* what) const {
    switch (where_) {
      case Where::start:
      case Where::end:
        malformed(path_, fmt::format("its header is {} where an object belongs", what));
      case Where::header:
        malformed(path_, fmt::format("the header's '{}' is {}, not an object", shown_name(key_), what));
      case Where::metadata:
        malformed(path_, fmt::format("the metadata's '{}' is {}, not a string", shown_name(key_), what));
      default:
        break;
    }
    malformed(path_, fmt::format("{} of tensor '{}' holds {}", key_, shown_name(entries.back().name), what));
  }

  void start_field(Entry& entry) {
    bool* seen = key_ == "dtype"          ? &entry.has_type
                 : key_ == "shape"        ? &entry.has_shape
                 : key_ == "data_offsets" ? &entry.has_offsets
                                          : nullptr;
    if (seen == nullptr)
      malformed(path_, fmt::format("tensor '{}' has an unknown field '{}'", shown_name(entry.name),
                                   shown_name(key_)));
    if (*seen) malformed(path_, fmt::format("tensor '{}' has its {} twice", shown_name(entry.name), key_));
    *seen = true;
  }

  void set_type(Entry& entry, const std::string& name) {
    const auto row =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return name == r.name; });
    if (row == kTypes.end())
      throw Error(ExitCode::malformed_file,
                  fmt::format("{}: tensor '{}' has dtype '{}', which is not supported.", printable(path_),
                              shown_name(entry.name), shown_name(name)),
                  "Convert the file to F32, F16, BF16, F64, I64, I32, U8 or BOOL.");
    entry.type = row->type;
  }

  const std::string& path_;
  Where where_ = Where::start;
  std::string key_;
  std::unordered_set<std::string> names_;
};

// Bytes of a tensor by shape and type; nothing when they, or the number of elements, overflow.
std::optional<uint64_t> stated_bytes(const Entry& entry) {
  uint64_t total = row_of(entry.type).bytes;
  for (const uint64_t dimension : entry.shape) {
    if (dimension > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    if (__builtin_mul_overflow(total, dimension, &total)) return std::nullopt;
  }
  return total;
}

// Checks offsets, shapes and types against each other and against the data's true length. Returns the tensors
// in the order of their offsets.
std::vector<SafetensorsTensor> checked_tensors(const std::string& path, std::vector<Entry> entries,
                                               uint64_t data_begin, uint64_t data_bytes) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(entries.size());
  uint64_t previous_end = 0;
  for (Entry& entry : entries) {
    const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    const std::string name = shown_name(entry.name);
    if (end < begin) malformed(path, fmt::format("tensor '{}' ends before it begins", name));
    if (begin != previous_end)
      malformed(
          path,
          fmt::format(
              "tensor '{}' begins at byte {} of the data, which leaves a hole or an overlap after byte {}",
              name, begin, previous_end));
    if (end > data_bytes)
      malformed(path,
                fmt::format("tensor '{}' ends at byte {} of the data, but the file has only {} bytes of data",
                            name, end, data_bytes));
    const std::optional<uint64_t> bytes = stated_bytes(entry);
    if (!bytes) malformed(path, fmt::format("the shape of tensor '{}' overflows", name));
    if (*bytes != end - begin)
      malformed(path, fmt::format("tensor '{}' has {} bytes, but its shape and dtype make {}", name,
                                  end - begin, *bytes));
    tensors.push_back({std::move(entry.name), entry.type, Shape(entry.shape.begin(), entry.shape.end()),
                       data_begin + begin, *bytes});
    previous_end = end;
  }
  if (previous_end != data_bytes)
    malformed(path, fmt::format("its tensors end at byte {} of the data, but the file has {}", previous_end,
                                data_bytes));
  return tensors;
}

// The length is compared with the limit and with the file before memory is allocated.
uint64_t header_length(const InputFile& file) {
  if (file.bytes() < kLengthBytes)
    malformed(file.path(),
              fmt::format("it has {} bytes and cannot even hold a header's length", file.bytes()));
  uint64_t length = 0;
  file.read(0, &length, kLengthBytes);
  if (length > kHeaderBytesMax)
    malformed(file.path(),
              fmt::format("its header claims {} bytes; at most {} are allowed", length, kHeaderBytesMax));
  if (length > file.bytes() - kLengthBytes)
    malformed(file.path(),
              fmt::format("its header claims {} bytes, but the file ends {} bytes after the length", length,
                          file.bytes() - kLengthBytes));
  return length;
}

// The header's JSON.
std::string read_header(const InputFile& file) {
  std::string header(header_length(file), '\0');
  file.read(kLengthBytes, header.data(), header.size());
  // The JSON parser reports neither a NUL, where it ends, nor a byte-order mark, which it skips.
  if (const size_t nul = header.find('\0'); nul != std::string::npos)
    malformed(file.path(), fmt::format("its header is not valid JSON at byte {}", kLengthBytes + nul));
  if (header.starts_with("\xEF\xBB\xBF")) malformed(file.path(), "its header begins with a byte-order mark");
  return header;
}

}  // namespace

const char* safetensors_type_name(SafetensorsType type) { return row_of(type).name; }
uint64_t safetensors_type_bytes(SafetensorsType type) { return row_of(type).bytes; }
std::optional<DType> dtype_of(SafetensorsType type) { return row_of(type).dtype; }

SafetensorsType safetensors_type(DType type) {
  const auto row =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.dtype == type; });
  CHECK(row != kTypes.end(), "a type without a safetensors name");
  return row->type;
}

std::string shown_name(std::string_view name) {
  constexpr size_t kBytesMax = 200;
  if (name.size() <= kBytesMax) return printable(std::string(name));
  return printable(std::string(name.substr(0, kBytesMax))) + "...";
}

std::string shown_shape(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file{InputFile(path)};
  HeaderHandler handler(path);
  uint64_t data_begin = 0;
  {
    const std::string header = read_header(file.file_);
    data_begin = kLengthBytes + header.size();
    CHECK(Json::sax_parse(header, &handler), "the handler throws on errors");
  }
  file.metadata_ = std::move(handler.metadata);
  file.tensors_ =
      checked_tensors(path, std::move(handler.entries), data_begin, file.file_.bytes() - data_begin);
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.by_name_.emplace(file.tensors_[i].name, i);
  return file;
}

uint64_t SafetensorsFile::header_bytes(const std::string& path) {
  try {
    return header_length(InputFile(path));
  } catch (const Error&) {
    return 0;
  }
}

const SafetensorsTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read_raw(const SafetensorsTensor& tensor, uint64_t first_byte, uint64_t bytes,
                               void* out) const {
  CHECK(first_byte <= tensor.bytes && bytes <= tensor.bytes - first_byte,
        "range outside of " + shown_name(tensor.name));
  file_.read(tensor.begin + first_byte, out, bytes);
}

void SafetensorsFile::read_f32(const SafetensorsTensor& tensor, uint64_t first_element, uint64_t count,
                               float* out) const {
  CHECK(first_element <= tensor.elements() && count <= tensor.elements() - first_element,
        "range outside of " + shown_name(tensor.name));
  const uint64_t width = safetensors_type_bytes(tensor.type);
  if (tensor.type == SafetensorsType::f32) return read_raw(tensor, first_element * width, count * width, out);
  const bool half = tensor.type == SafetensorsType::f16 || tensor.type == SafetensorsType::bf16;
  if (!half && tensor.type != SafetensorsType::f64)
    throw Error(ExitCode::malformed_file,
                fmt::format("{}: tensor '{}' has dtype {}, which is no floating-point type.",
                            printable(path()), shown_name(tensor.name), safetensors_type_name(tensor.type)),
                "Give weights in F32, F16, BF16 or F64.");
  alignas(64) std::byte piece[64 * 1024];  // on the stack: reading allocates nothing
  while (count > 0) {
    const uint64_t n = std::min<uint64_t>(count, sizeof piece / width);
    read_raw(tensor, first_element * width, n * width, piece);
    if (half) {
      widen(*dtype_of(tensor.type), piece, out, n);
    } else {
      for (uint64_t i = 0; i < n; ++i) {
        double value;
        std::memcpy(&value, piece + i * sizeof value, sizeof value);
        out[i] = static_cast<float>(value);
      }
    }
    first_element += n;
    count -= n;
    out += n;
  }
}

SafetensorsLayout lay_out_safetensors(std::span<const TensorSpec> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      uint64_t alignment) {
  CHECK(alignment >= kLengthBytes && std::has_single_bit(alignment), "alignment of the data");
  std::map<std::string, std::string> merged = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) merged[key] = value;
  std::string json = "{\"" + std::string(kMetadataKey) + "\":" + Json(merged).dump();
  std::unordered_set<std::string_view> names;
  SafetensorsLayout layout;
  uint64_t end = 0;
  for (const TensorSpec& tensor : tensors) {
    CHECK(tensor.name != kMetadataKey && names.insert(tensor.name).second,
          "tensor name " + shown_name(tensor.name));
    const uint64_t begin = end;
    end += static_cast<uint64_t>(element_count(tensor.shape)) * dtype_bytes(tensor.dtype);
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        Json(tensor.name).dump(), safetensors_type_name(safetensors_type(tensor.dtype)),
                        fmt::join(tensor.shape, ","), begin, end);
    layout.offsets.push_back(begin);
  }
  json += '}';
  const uint64_t data_begin = (kLengthBytes + json.size() + alignment - 1) / alignment * alignment;
  const uint64_t length = data_begin - kLengthBytes;
  CHECK(length <= kHeaderBytesMax, "a safetensors header above the format's limit");
  json.resize(length, ' ');
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.header += json;
  for (uint64_t& offset : layout.offsets) offset += data_begin;
  layout.file_bytes = data_begin + end;
  return layout;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata, uint64_t alignment)
    : layout_(lay_out_safetensors(tensors, metadata, alignment)), file_(path) {
  file_.write(layout_.header.data(), layout_.header.size());
}

void SafetensorsWriter::write(const void* data, uint64_t bytes) {
  CHECK(bytes <= layout_.file_bytes - file_.written(), "more bytes than the tensors have");
  file_.write(data, bytes);
}

void SafetensorsWriter::finish() {
  CHECK(file_.written() == layout_.file_bytes, "fewer bytes than the tensors have");
  file_.commit();
}

}  // namespace sluice
