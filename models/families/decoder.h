// The frame of a decoder-only model: a token embedding with learned positions or without, layers, and a head.
// A family adds the names of its tensors and its layer.
//
// Layers of one type with as many experts and the same adapters share a segment template, made from the
// parameter groups of the first of them; all of these have parameters of the same shapes. The head's weight
// is the token embedding's where the config ties them, else lm_head.weight. Where there are document begins,
// the op that reads the position table gets them here, and a layer takes them from
// SegmentBuilder::with_documents.
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

  Routing routing;  // of the first set, `experts` is that of the layer (experts_of)
  // Expert e of layer i has parameters LAYERS.i.NAME.e.*, or LAYERS.i.NAME.* where it is not numbered.
  std::string name;
  bool numbered = true;
  // The layer's parameter LAYERS.i.ROUTER.weight; it gets no adapter, nor do those of further_routers.
  std::string router;
  std::vector<std::string> further_routers = {};
  bool adapted = true;  // whether experts get adapters
  std::function<std::vector<Parameter>(const std::string& prefix)> parameters;  // of an expert
  // Appends the ops of an expert between dispatch and combine; returns its result, of the shape of `rows`,
  // the expert's. Weights are named by the part of their name after the prefix.
  std::function<Tensor(SegmentBuilder& builder, Tensor rows, Tensor weights, Tensor routing,
                       const Routing& of)>
      ops;
};

// The part of a decoder that its layers with a mixture of experts have (ModelConfig::experts). Such a layer
// is a segment that ends in the choice of experts, a segment for each expert (where experts are divided over
// ranks, those of divided_experts.h), and one that adds their sum.
// Each expert has a parameter group of its own. In training, the host reads the statistics of layer i's first
// router (OpKind::router_statistics): the model's output "experts.i".
struct Mixture {
  using Tensor = SegmentBuilder::Tensor;
  struct Choice {
    Tensor weights, routing;
  };
  // What the experts of a layer take, and the residual stream to which their sum is added.
  struct Routed {
    Tensor middle, rows;
    std::vector<Choice> choices;  // as `experts`
    Tensor logits;                // of the router of the first of them
    // What a dense part makes of the rows, and the shares [rows, 2] that the experts' sum and it have.
    struct Beside {
      Tensor z, shares;
    };
    std::optional<Beside> beside;
  };

  std::vector<Experts> experts;  // the first are those whose router may have a loss
  bool loss_by_layer = false;    // the routers' loss is the sum of layers' losses, not that of all their rows
  bool draws = false;            // routers draw random numbers: the model has an input `draws` (draws.h)
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

  // Parameters of one layer, whose names begin with `prefix`, "LAYERS.i.". `experts`: of its mixture, if it
  // has one; then these are its parameters without those of the experts.
  std::function<std::vector<Parameter>(const std::string& prefix, int64_t experts)> parameters;
  // Appends the ops of a layer of that type on x [rows, width] and returns their result, of the same shape.
  // Weights are named by the part of their name after the prefix.
  std::function<SegmentBuilder::Tensor(SegmentBuilder& builder, SegmentBuilder::Tensor x, LayerType type)>
      layer;

  Mixture mixture;
};

// Fills in the parameter groups, segments, activations and layers of a model that has none: those that are
// trained if the model has a sequence to train on, and those of its readings.
void build_decoder(const ModelConfig& config, const Decoder& decoder, Model& model);

}  // namespace sluice
