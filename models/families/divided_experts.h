// A layer's experts where these are divided over ranks: rank n of N has the n-th part of them, for the tokens
// of all N ranks.
//
// First every rank tells the others which experts its tokens chose, and with which weights. Then all ranks go
// through their own experts together, one at a time: each rank sends rows of its tokens to the ranks whose
// current experts the tokens chose; each expert computes its results for the rows of all ranks, one rank
// after the other; and the results go back and are added to the sum. So no rank has more rows at a time than
// N experts take. Rows that travelled are not kept for backward: they travel again. Where the ranks are on
// several nodes, rows travel inside nodes first, then across nodes between ranks that have the same place in
// their nodes. So there are fewer messages, each of more rows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/families/decoder.h"

namespace sluice {

class DividedExperts {
 public:
  // Binds an expert's groups to a segment that is being built.
  using Bind = std::function<void(SegmentBuilder& builder, const std::vector<uint32_t>& groups)>;

  // Each rank has `count` experts of a layer. `suffix` tells these experts' segments from the segments of
  // other experts.
  DividedExperts(Model& model, const Experts& experts, int64_t count, const Mesh& mesh, std::string suffix,
                 Bind bind);

  // Activations that a layer's router makes.
  struct Routed {
    uint32_t rows, weights, routing;
  };
  // Appends the layers of one layer's experts, whose names begin with `name`. `groups`: for each of this
  // rank's experts, the groups that its segment binds. Returns the sum to which the experts add: `sum`, or a
  // new activation.
  uint32_t add(const std::string& name, const Routed& routed,
               const std::vector<std::vector<uint32_t>>& groups, std::optional<uint32_t> sum);

 private:
  SegmentBuilder builder(const char* name) const { return {model_, name + suffix_}; }
  SegmentBuilder::Tensor input(SegmentBuilder& b, const char* name, uint32_t activation) const;
  uint32_t add_segment(Segment segment);
  uint32_t add_activation(std::string name, uint32_t segment, size_t output, bool made_again);

  struct OfAll {
    uint32_t weights, routing;  // activations, of all ranks
  };
  OfAll gather(const std::string& name, const Routed& routed);
  uint32_t segment_of(OpKind kind, const char* name, const char* input_name, uint32_t activation);
  uint32_t dispatch_segment(const Routed& routed);
  uint32_t travel_segment(const char* name, bool returns, const ProcessGroup& among, uint32_t routing,
                          uint32_t all, uint32_t rows);
  uint32_t expert_segment(const std::vector<uint32_t>& groups, uint32_t all, uint32_t weights, uint32_t rows);
  uint32_t travel(Layer& layer, bool returns, uint32_t routing, uint32_t all, uint32_t rows,
                  const std::string& to);
  uint32_t combine_segment(const Routed& routed, uint32_t rows);

  Model& model_;
  const Experts& experts_;
  Routing routing_;
  Mesh::Levels levels_;  // of the ranks that the experts are divided over
  std::string suffix_;
  Bind bind_;
  // The first layer makes these segments, and the others use them.
  std::optional<uint32_t> gather_, repeat_, exchange_, dispatch_, computes_, combine_;
  struct Way {
    std::optional<uint32_t> in_nodes, whole;
  } there_, back_;
  uint32_t expert_ = 0;  // number, on its rank, of the expert that is being added
};

}  // namespace sluice
