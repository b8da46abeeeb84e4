// The frame of a decoder-only model: a token embedding with learned positions or without, layers, and a head.
// A family adds the names of its tensors and its layer.
//
// Layers of one type with equal numbers of experts and the same adapters share a segment template. It is made
// from the parameter groups of the first of these layers; the others have parameters of the same shapes. The
// head's weight is the token embedding's where the config ties them, else lm_head.weight. If there are
// document begins, build_decoder() gives them to the op that reads the position table, and a layer takes them
// from SegmentBuilder::with_documents.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/families/segment_builder.h"

namespace sluice {

// Experts that share a router.
struct Experts {
  using Tensor = SegmentBuilder::Tensor;

  Routing routing;  // for the first set, experts_of() of the layer replaces `experts`
  // Expert e of layer i has parameters LAYERS.i.NAME.e.*, or LAYERS.i.NAME.* where it is not numbered.
  std::string name;
  bool numbered = true;
  // The router has parameter LAYERS.i.ROUTER.weight. Neither this router nor further_routers get adapters.
  std::string router;
  std::vector<std::string> further_routers = {};
  bool adapted = true;  // whether experts get adapters
  std::function<std::vector<Parameter>(const std::string& prefix)> parameters;  // of an expert
  // Appends the ops of an expert between dispatch and combine. Returns their result, in the shape of `rows`,
  // the expert's rows. Weights are named by the part of their name after the prefix.
  std::function<Tensor(SegmentBuilder& builder, Tensor rows, Tensor weights, Tensor routing,
                       const Routing& of)>
      ops;
};

// What a decoder says of its layers with a mixture of experts (ModelConfig::experts). Such a layer consists
// of a segment that ends in the choice of experts, a segment for each expert (where experts are divided over
// ranks, the segments of divided_experts.h), and a segment that adds the experts' sum. Each expert has a
// parameter group of its own. In training, the host reads the statistics of layer i's first router
// (OpKind::router_statistics) as the model's output "experts.i".
struct Mixture {
  using Tensor = SegmentBuilder::Tensor;
  struct Choice {
    Tensor weights, routing;
  };
  // What the experts of a layer take, and the residual stream to which their sum is added.
  struct Routed {
    Tensor middle, rows;
    std::vector<Choice> choices;  // one for each set of Mixture::experts
    Tensor logits;                // of the first set's router
    // z: what a dense part makes of the rows. shares [rows, 2]: the factors of the experts' sum and of z.
    struct Beside {
      Tensor z, shares;
    };
    std::optional<Beside> beside;
  };

  std::vector<Experts> experts;  // sets; only the first set's router may have a loss
  bool loss_by_layer = false;  // the routers' loss is a sum over layers, not one over the rows of all layers
  bool draws = false;          // routers draw random numbers: the model has an input `draws` (draws.h)
  // Appends the ops of a layer on x up to the choice of experts.
  std::function<Routed(SegmentBuilder& builder, Tensor x, LayerType type)> route;
};

struct Decoder {
  // Parameter groups, named as in checkpoints: EMBEDDING.weight, POSITIONS.weight, LAYERS.i.*, NORM.weight.
  std::string embedding;
  std::string positions;  // "": the model has no learned positions
  std::string layers;
  std::string norm;
  OpKind norm_kind = OpKind::rms_norm;  // or layer_norm, which also has NORM.bias
  bool weight_from_one = false;         // the norm's (op.h)
  double embedding_scale = 0;           // a factor of the token embedding; 0: none

  // Parameters of one layer, whose names begin with `prefix`, "LAYERS.i.". `experts`: how many the layer has,
  // 0 for none; the experts' parameters are not among these.
  std::function<std::vector<Parameter>(const std::string& prefix, int64_t experts)> parameters;
  // Appends the ops of a layer of that type on x [rows, width] and returns their result, of the same shape.
  // Weights are named by the part of their name after the prefix.
  std::function<SegmentBuilder::Tensor(SegmentBuilder& builder, SegmentBuilder::Tensor x, LayerType type)>
      layer;

  Mixture mixture;
};

// Fills in the parameter groups, segments, activations and layers of a model that has none: for training, if
// the model has a sequence to train on, and for each of its readings.
void build_decoder(const ModelConfig& config, const Decoder& decoder, Model& model);

}  // namespace sluice
