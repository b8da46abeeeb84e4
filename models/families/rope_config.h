// The keys of a config.json that say how positions are rotated, in all their spellings.
//
// Up to version 4 of transformers: rope_theta and rope_scaling, with rope_local_base_freq or without. From
// version 5 on: rope_parameters, of all layers or by type of layer (full_attention, sliding_attention). Files
// are written in the older form where that suffices, since all versions of transformers read it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/families/config_reader.h"

namespace sluice {

// How transformers' class of the family reads the keys.
struct RopeKeys {
  double theta = 10000;         // rope_theta where no key gives it
  double sliding_theta = 0;     // for sliding layers, with plain frequencies; 0: as in other layers
  RopeScaling scaling = {};     // where the file has neither rope_scaling nor rope_parameters
  bool has_local_base = false;  // rope_local_base_freq is the sliding layers' rope_theta in the older form
  bool may_be_partial = false;  // whether only a part of a head's columns may turn
};

// Sets rope_theta, rope_scaling and their namesakes for sliding layers. Complains about keys that disagree.
void read_rope(const ConfigReader& file, const RopeKeys& keys, ModelConfig& config);
void write_rope(const ModelConfig& config, const RopeKeys& keys, nlohmann::ordered_json& file);

}  // namespace sluice
