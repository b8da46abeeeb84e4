// Tensors of files, and the parameters that they are made of. A tensor is one parameter, unless it has
// parameters of all experts of a layer (Family::stacked). Pure functions; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "models/families/config_reader.h"

namespace sluice {

struct Family;

// The numbers of layers and experts that a config.json has, or else the most that any model may have.
struct ExpertCounts {
  int64_t layers = kLayersMax, experts = kExpertsMax;
};

// Element i of the parameter is element skip + i * step of the tensor.
struct TensorPart {
  std::string parameter;
  Shape shape;
  uint64_t skip = 0, step = 1;
  uint64_t elements() const { return static_cast<uint64_t>(element_count(shape)); }
};

struct StoredTensor {
  std::string name;
  Shape shape;
  std::vector<TensorPart> parts;
};

// Layer and expert of a parameter; nothing: the parameter belongs to no expert.
struct ExpertPlace {
  int64_t layer = 0, expert = 0;
  std::string_view name;  // what follows the expert's number: "gate_proj.weight"
};
std::optional<ExpertPlace> expert_of(const Family& family, std::string_view parameter);

// The most parameters that a directory's stacked tensors may have in total.
uint64_t stacked_parameters(const Family& family, const ExpertCounts& counts);

// How many parameters a file's tensor is made of, by its name and shape alone. 0: it is no stacked tensor of
// the family, its shape cannot be divided, or it has no experts.
struct StackSize {
  int64_t experts = 0, of_expert = 0;
};
StackSize stack_size(const Family& family, const std::string& tensor, const Shape& shape);

// The parameters of a file's tensor; the caller has bounded the number of experts. Empty: stack_size() is 0.
// `first_expert`: the expert with which the tensor begins.
std::vector<TensorPart> stacked_parts(const Family& family, const std::string& tensor, const Shape& shape,
                                      int64_t first_expert = 0);

// The tensors in which files have the model's parameters, ordered by the first parameter of each tensor.
// Parameters of adapters are left out.
std::vector<StoredTensor> stored_tensors(const Family& family, const Model& model);

// Elements [first, first + count) of the tensor. `read` is called with the elements that it shall read from
// the parameter of `part`.
using ReadPart = std::function<void(const TensorPart& part, uint64_t first, uint64_t count, float* out)>;
void read_stored(const StoredTensor& tensor, uint64_t first, uint64_t count, const ReadPart& read,
                 float* out);

}  // namespace sluice
