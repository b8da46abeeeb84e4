// Weights of a Hugging Face directory: model.safetensors, or the files that model.safetensors.index.json
// names, or the files of an export with --shards, each of which holds some rows of every tensor
// (hf_export.h).
//
// Names are those of Parameter::name: when the directory is opened, prefixes that Family knows are removed
// and tensors that are no parameters (Family::is_buffer) are left out. A tensor of all experts of a layer
// (Family::stacked) is read as the parameters that it is made of, also where it is stored in MXFP4
// (models/files/mxfp4.h). In a directory of adapters (peft.h), what PEFT puts before the names is removed,
// too, and an adapter of all experts of a layer is read as one adapter for each expert (peft_experts.h).
//
// Reads are const and may come from any thread. Callers: engine/run/start.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "models/files/mxfp4.h"
#include "models/files/safetensors.h"
#include "models/weights/stacked.h"

namespace sluice {

struct Family;

// Whether the directory holds weights to start from. Throws Error(malformed_file) when it holds them only in
// a format that cannot be read (pickle): a silent start from initial weights would be a surprise.
bool has_weights(const std::string& directory);

// Bytes of memory that HfWeights::open() takes at most. Reads the length of each header only. `stacked`: the
// most parameters that stacked tensors may have (stacked_parameters() of open()'s `most`).
uint64_t table_bytes_at_most(const std::string& directory, uint64_t stacked = 0);

struct HfPlace {
  size_t file = 0, tensor = 0;  // index into the files, and into the file's tensors
};

// A parameter that is stored in part: of each row of `columns` elements, the first `stored` are in the file,
// and the others are zeros. In the stored tensor, a row begins `apart` elements behind the row before.
// columns 0: all elements are stored.
struct HfRows {
  uint64_t columns = 0, stored = 0, apart = 0;
};

// A parameter as the files hold it. Its pieces follow each other from its first element to its last.
struct HfTensor {
  struct Piece {
    size_t file = 0, tensor = 0;       // index into the files, and into the file's tensors
    uint64_t first = 0, elements = 0;  // its first element in the parameter, and how many it has
    uint64_t skip = 0, step = 1;       // its element i is element skip + i * step of the stored tensor
    std::optional<HfPlace> scales;     // in MXFP4: place of the scales; `tensor` has the blocks
    HfRows rows;
  };
  SafetensorsType type = SafetensorsType::f32;
  Shape shape;
  std::vector<Piece> pieces;
  uint64_t elements() const { return static_cast<uint64_t>(element_count(shape)); }
};

class HfWeights {
 public:
  // Throws Error: usage when the directory or its weights do not exist; malformed_file for files and indexes
  // that break their format or contradict each other. Also malformed_file, before memory is taken for
  // tensors of all experts of a layer, where one of these has more experts than `most` says, or all together
  // have more parameters than `most` allows.
  static HfWeights open(const std::string& directory, const std::string& family,
                        const ExpertCounts& most = {});
  static HfWeights open_adapters(const std::string& directory, const std::string& family,
                                 const ExpertCounts& most = {});

  bool are_adapters() const { return are_adapters_; }

  const std::string& directory() const { return directory_; }
  std::vector<std::string> names() const;                    // sorted
  const HfTensor* find(const std::string& parameter) const;  // nullptr: not there

  // Elements [first, first + count) of a parameter that find() finds. Throws as SafetensorsFile::read_f32
  // and Mxfp4Reader::read. Matrices read from MXFP4 stay in memory (mxfp4.h).
  void read(const std::string& parameter, uint64_t first, uint64_t count, float* out) const;

 private:
  HfWeights() = default;
  void open_indexed(const std::string& index_path);
  void admit(const std::string& name, const StackSize& size, uint64_t all_most);
  void add_tensors(const Family& family);
  void add_adapters(const Family& family);
  void add(const std::string& name, HfTensor tensor);
  void add_parts(const Family& family, const std::string& name, const Shape& shape, SafetensorsType type,
                 const HfTensor::Piece& whole);
  void add_experts(std::span<const TensorPart> parts, SafetensorsType type, const HfTensor::Piece& whole);
  void add_rows(const std::string& name, const SafetensorsTensor& tensor, HfTensor::Piece piece,
                int64_t first_row);

  std::string directory_;
  bool are_adapters_ = false;
  ExpertCounts most_;
  uint64_t admitted_ = 0;  // parameters of stacked tensors
  std::vector<SafetensorsFile> files_;
  std::map<std::string, HfTensor> tensors_;
  std::unique_ptr<Mxfp4Reader> mxfp4_ = std::make_unique<Mxfp4Reader>();
};

// Whether `weights` has the parameters of the group. A directory for a model with adapters has either its
// base or its adapters; a directory for any other model has all groups.
bool holds(const HfWeights& weights, const Model& model, const Group& group);

// XXH3-64 of names, shapes and values of the base of a model with adapters, or of a whole model. Values are
// sampled as fp32: eight ranges of 1024 elements of each tensor, at equal distances from its beginning to
// its end. A tensor of at most 8192 elements is read as a whole. So the checksum does not depend on how
// files are divided, nor on a wider type of the same values. At most 32 KiB of a parameter are read. For a
// parameter in MXFP4, all stored rows of its expert are read, since a range has a part of many of them.
uint64_t sampled_checksum(const HfWeights& weights, const Model& model);

// Throws one Error(malformed_file) that lists the tensors that are missing, unknown, of another shape, or of
// no floating-point type (ten names of each, and how many there are). If a directory has a head's weight
// beside a tied embedding, the two must be equal, and the head's is skipped.
void check_weights(const HfWeights& weights, const Model& model);

}  // namespace sluice
