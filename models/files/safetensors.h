// safetensors files: a reader that trusts nothing, and a streaming writer.
//
// Layout: u64 N, N bytes of JSON, then the tensors' bytes without holes to the end of the file.
// Reader: the whole header is checked when the file is opened (every length against the bytes present,
// before anything is allocated from it), so afterwards a tensor's range can be read without checks. Reads are
// const and may come from any thread. Writer: all names and shapes come first, then the bytes in that order;
// memory use does not depend on the tensors. Callers: hf_weights and hf_export, checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/file.h"
#include "engine/graph/op.h"

namespace sluice {

// boolean: only so that the causal masks in some GPT-2 files can be skipped.
enum class SafetensorsType : uint8_t { f64, f32, f16, bf16, i64, i32, u8, boolean };
const char* safetensors_type_name(SafetensorsType type);  // as in files: "F32"
uint64_t safetensors_type_bytes(SafetensorsType type);
SafetensorsType safetensors_type(DType type);
// The DType of the same name; nothing for i64 and boolean.
std::optional<DType> dtype_of(SafetensorsType type);

struct SafetensorsTensor {
  std::string name;  // as in the file: print it through printable() only
  SafetensorsType type = SafetensorsType::f32;
  Shape shape;
  uint64_t begin = 0;  // first byte, counted from the start of the file
  uint64_t bytes = 0;
  uint64_t elements() const { return bytes / safetensors_type_bytes(type); }
};

class SafetensorsFile {
 public:
  // Throws Error(malformed_file) naming the file and, where there is one, the tensor; also as InputFile does.
  static SafetensorsFile open(const std::string& path);
  // Length of the file's header; 0 where open() would throw because of it.
  static uint64_t header_bytes(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // in order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsTensor* find(const std::string& name) const;  // nullptr: not there

  // Elements [first, first + count) of a tensor of this file as fp32; fp64 is rounded to nearest even. The
  // range must lie within the tensor. Throws Error(malformed_file) when the type is not a floating-point
  // type, Error(io) as InputFile.
  void read_f32(const SafetensorsTensor& tensor, uint64_t first_element, uint64_t count, float* out) const;
  // Bytes of the file itself, header included; the range must lie within it.
  void read_bytes(uint64_t first_byte, uint64_t bytes, void* out) const {
    file_.read(first_byte, out, bytes);
  }
  // Bytes [first_byte, first_byte + bytes) of a tensor as they are.
  void read_raw(const SafetensorsTensor& tensor, uint64_t first_byte, uint64_t bytes, void* out) const;

 private:
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}

  InputFile file_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::unordered_map<std::string, size_t> by_name_;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

struct SafetensorsLayout {
  std::string header;             // everything before the data: length, JSON, padding
  std::vector<uint64_t> offsets;  // of each tensor's first byte, from the start of the file
  uint64_t file_bytes = 0;
};

constexpr uint64_t kExportAlignment = 8;         // what other loaders expect
constexpr uint64_t kCheckpointAlignment = 4096;  // so that tensors can go by O_DIRECT

// Lays out a file of these tensors, in this order. The data begins at a multiple of `alignment` (a power of
// two, at least 8). `metadata` is merged with {"format": "pt"}, without which Hugging Face loaders refuse a
// file that has metadata. Names must be unique, valid UTF-8 and not "__metadata__".
SafetensorsLayout lay_out_safetensors(std::span<const TensorSpec> tensors,
                                      const std::map<std::string, std::string>& metadata, uint64_t alignment);

// Writes one file: the constructor writes the header, write() appends the tensors' bytes in order, in pieces
// of any size, finish() makes the file durable under its name. Without finish() nothing stays behind. Throws
// as OutputFile does.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::span<const TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata, uint64_t alignment);
  void write(const void* data, uint64_t bytes);
  void finish();

 private:
  SafetensorsLayout layout_;
  OutputFile file_;
};

// A name from a file, made printable and cut to a length that fits a message.
std::string shown_name(std::string_view name);
std::string shown_shape(const Shape& shape);  // "[2, 3]"

}  // namespace sluice
