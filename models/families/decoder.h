// The frame of a decoder-only model: a token embedding with learned positions or without, equal layers, and a
// head. A family adds the names of its tensors and its layer.
//
// All layers share one segment template, `block`, made from the first layer's parameter group. The head's
// weight is the token embedding's where the config ties them, else lm_head.weight.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/families/segment_builder.h"

namespace sluice {

struct Decoder {
  // Parameter groups, named as in checkpoints: EMBEDDING.weight, POSITIONS.weight, LAYERS.i.*, NORM.weight.
  std::string embedding;
  std::string positions;  // "": the model has no learned positions
  std::string layers;
  std::string norm;
  OpKind norm_kind = OpKind::rms_norm;  // or layer_norm, which also has NORM.bias

  // Parameters of one layer, whose names begin with `prefix`, "LAYERS.i.".
  std::function<std::vector<Parameter>(const std::string& prefix)> parameters;
  // Appends a layer's ops on x [rows, width] and returns their result, of the same shape. Weights are named
  // by the part of their name after the prefix.
  std::function<SegmentBuilder::Tensor(SegmentBuilder& builder, SegmentBuilder::Tensor x)> layer;
};

// Fills in the parameter groups, segments, activations and layers of a model that has none.
void build_decoder(const ModelConfig& config, const Decoder& decoder, Model& model);

}  // namespace sluice
