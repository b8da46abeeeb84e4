// Weights of a base with adapters added to them: W + s B A.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "models/families/adapters.h"

namespace sluice {

// Yields elements [first, first + count) of a tensor as fp32. May throw.
using ReadParameter =
    std::function<void(const std::string& name, uint64_t first, uint64_t count, float* out)>;

// Computes in fp32. Holds the factors of one matrix at a time, so tensors are best read one after the other.
// Not for several threads at once.
class MergedWeights {
 public:
  // `base` and `adapters` read the parameters of the model's base and adapters. The model outlives this.
  MergedWeights(const Model& model, const Adapters& settings, ReadParameter base, ReadParameter adapters);

  // Elements [first, first + count) of the base's tensor `name`, which has the shape `shape`.
  void read(const std::string& name, const Shape& shape, uint64_t first, uint64_t count, float* out);

 private:
  const Parameter* find(const std::string& name) const;  // nullptr: no adapter has that name
  void fetch(const std::string& name);

  const Model& model_;
  double scale_;
  int64_t rank_;
  bool in_out_;
  ReadParameter base_, adapters_;
  std::string held_;              // the matrix whose factors are held
  std::vector<float> down_, up_;  // A and B; empty: it has no adapter
};

}  // namespace sluice
