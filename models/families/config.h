// What a model is, as numbers: read from a Hugging Face config.json, a preset's name or an inline
// description, and written back as a config.json. Families (family.h) turn it into layers.
//
// A ModelConfig that one of these functions returned is consistent: heads divide the width, every size is in
// range, and parameters in total stay below 2^45, so that later sums of bytes cannot overflow.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/graph/mesh.h"
#include "models/families/adapters.h"
#include "models/families/rope_frequencies.h"

namespace sluice {

// Types of layers within one model.
enum class LayerType : uint8_t {
  full,     // a query of attention sees all keys up to its own
  sliding,  // a query sees `window` keys at most
  no_rope,  // full, without rotary positions
};

struct ModelConfig {
  std::string family;  // its name in the registry
  int64_t vocabulary = 0;
  int64_t context = 0;  // longest sequence, in tokens
  int64_t width = 0;    // of the residual stream
  int64_t layers = 0;
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  int64_t ffn = 0;        // width of the feed-forward part
  double epsilon = 1e-5;  // of the norms
  bool tied = false;      // the head's weight is the token embedding
  // Biases of attention and of the feed-forward part. GPT-2 has both kinds; a Llama config.json says for each
  // kind whether the model has it. A family that always has the same biases need not set them.
  bool attention_bias = false, mlp_bias = false;
  double rope_theta = 0;  // 0: learned positions
  RopeScaling rope_scaling;
  // The attention window and the rotary positions of sliding layers; theta 0: the positions are those of all
  // layers.
  int64_t window = 0;
  double sliding_rope_theta = 0;
  RopeScaling sliding_rope_scaling;
  std::vector<LayerType> layer_types;  // layer i is of type layer_types[i % size]; empty: full
  // Factors of embeddings, of what a layer adds to the residual stream, and of scores. 0: no factor, but
  // 1 / sqrt(head_size) for scores. Logits are divided by logits_divisor; 0: they are not.
  double embedding_scale = 0, residual_scale = 0, attention_scale = 0, logits_divisor = 0;
  double attention_cap = 0, logits_cap = 0;  // soft caps of scores and logits; 0: none
  // A mixture of experts in place of the feed-forward part; experts 0: there is none. expert_ffn is an
  // expert's ffn. Dense layers have no experts.
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0;
  // Layers with experts are divided into equal parts, one for each number here: a layer of part i has
  // expert_counts[i] experts. `experts` is the largest number. Empty: all have `experts`.
  std::vector<int64_t> expert_counts;
  int64_t expert_interval = 0;                // layer i has experts if this divides i + 1; 0: no such rule
  int64_t shared_expert_ffn = 0;              // of an expert for all tokens, scaled by a sigmoid; 0: none
  std::vector<int64_t> dense_layers;          // ascending
  bool normalized_experts = false;            // the weights of a token's experts sum to 1
  double swiglu_limit = 0, swiglu_alpha = 0;  // of experts (op.h)
  double capacity_factor = 0;                 // of experts (Routing), for each sequence; 0: no limit
  int64_t least_capacity = 4;                 // where capacity_factor is not 0
  bool random_second = false;                 // the second of a token's two experts is random
  bool noisy_router = false;                  // logits get noise (OpKind::add_noise)
  bool residual_experts = false;              // a feed-forward part stands beside a layer's experts
  double router_loss = 0;                     // factor of the routers' loss, where it counts
  bool has_router_loss = false;               // whether the routers' loss counts
  double router_z_loss = 0;                   // factor of the routers' z-loss; no config.json has it
  Adapters adapters;                          // no config.json names them
  Mesh mesh;                                  // of the ranks that train it
  uint32_t rank = 0;                          // the rank that the model is for
  bool nested = false;                        // the file was a larger model's (Family::nested)
  // bos_token_id and the like, as JSON text; carried to exports.
  std::map<std::string, std::string> special_tokens;
  // Other keys of the file that a config.json of this model may have, as JSON text; carried to exports.
  std::map<std::string, std::string> unused;
  // Sentences to print: what the file says and training does not apply.
  std::vector<std::string> notes;
};

// A Hugging Face config.json of a family's model_type; `file` names it in messages. Throws
// Error(malformed_file) for missing, contradictory or absurd values and for unsupported keys that change the
// mathematics; Error(usage) for families that are announced but not built (planned_families()). Source of the
// keys: transformers, `models/*/configuration_*.py`.
ModelConfig config_from_json(const std::string& text, const std::string& file);

// A config.json that transformers loads; `weights` is the type of the tensors stored beside it.
std::string config_to_json(const ModelConfig& config, DType weights);

// "gpt2-xl", or with other sizes "gpt2-xl:layers=6,width=384,heads=6". A family's name before sizes stands
// for its plain preset. Sizes that are not given come from the preset, with exceptions. A given width or
// number of heads sets head_size. A given width sets ffn, by the family's rule. A given width or ffn sets
// expert_ffn: to ffn if they are equal in the preset, else in the preset's proportion to the width. Given
// heads set kv_heads if the two are equal in the preset. Throws Error(usage), with the nearest known name.
ModelConfig config_from_name(const std::string& text);

LayerType layer_type(const ModelConfig& config, int64_t layer);
bool has_experts(const ModelConfig& config, int64_t layer);
int64_t experts_of(const ModelConfig& config, int64_t layer);  // 0: it has none

// "64", or "32/64" for expert_counts.
std::string expert_counts_text(const ModelConfig& config);
// Sets dense_layers by expert_interval, which is positive.
void place_experts(ModelConfig& config);
// Whether the model's loss includes a loss of its routers.
inline bool router_loss_counts(const ModelConfig& config) {
  return config.has_router_loss || config.router_z_loss > 0;
}

// Names and aliases that config_from_name takes without a description.
std::vector<std::string> preset_names();

// Throws Error(code) with "`where`: ..." unless the sizes fit together. The functions above have called it.
void check_config(const ModelConfig& config, const std::string& where, ExitCode code);

}  // namespace sluice
