// LoRA: adapters beside the linear ops of a model's layers. Hu et al., "LoRA: Low-Rank Adaptation of Large
// Language Models" (2021); names and defaults of PEFT 0.21.2.
//
// An adapted op computes y = W x + s B (A x): A is [rank, in], B is [out, rank], whichever way W lies. The
// adapters of a layer are a group of their own. Only such groups are trained; all others are frozen.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct Group;
struct Parameter;

struct Adapters {
  int64_t rank = 0;  // 0: the model has none
  double alpha = 0;
  bool root_scale = false;  // rank-stabilised LoRA (Kalajdzievski, 2023)
  // Linear ops by the end of their name, as q_proj, attn.c_proj or layers.3.mlp.up_proj; empty: all linear
  // ops of the layers.
  std::vector<std::string> targets;

  double scale() const;  // s: alpha / rank, or alpha / sqrt(rank)
};

constexpr int64_t kAdapterRankMax = 4096;
constexpr std::string_view kAdapterDown = ".lora_A.weight", kAdapterUp = ".lora_B.weight";

// "h.0.attn.c_attn.weight" -> "h.0.attn.c_attn".
std::string linear_name(std::string_view weight);

// The adapters of the group's matrices that are targets. `in_out`: the matrices are [in, out].
// Throws Error(usage) for a rank above a side of such a matrix.
std::vector<Parameter> adapter_parameters(const Adapters& adapters, std::span<const Parameter> group,
                                          bool in_out);

// Throws Error(usage) for a target that names no matrix of the layers' groups.
void check_targets(const Adapters& adapters, std::span<const Group> layers);

}  // namespace sluice
