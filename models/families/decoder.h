// The frame of a decoder-only model: a token embedding with learned positions or without, layers, and a head.
// A family adds the names of its tensors and its layer.
//
// Layers of one type share a segment template, made from the parameter group of the first of them; all layers
// have parameters of the same shapes. The head's weight is the token embedding's where the config ties them,
// else lm_head.weight. Where there are document begins, the op that reads the position table gets them here,
// and a layer takes them from SegmentBuilder::with_documents.
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
  bool weight_from_one = false;         // the norm's (op.h)
  double embedding_scale = 0;           // a factor of the token embedding; 0: none

  // Parameters of one layer, whose names begin with `prefix`, "LAYERS.i.".
  std::function<std::vector<Parameter>(const std::string& prefix)> parameters;
  // Appends the ops of a layer of that type on x [rows, width] and returns their result, of the same shape.
  // Weights are named by the part of their name after the prefix.
  std::function<SegmentBuilder::Tensor(SegmentBuilder& builder, SegmentBuilder::Tensor x, LayerType type)>
      layer;
};

// Fills in the parameter groups, segments, activations and layers of a model that has none: those that are
// trained if the model has a sequence to train on, and those of its readings.
void build_decoder(const ModelConfig& config, const Decoder& decoder, Model& model);

}  // namespace sluice
