// Adapters of experts as PEFT 0.21.2 keeps them for transformers 5.23, where a layer has the matrices of all
// its experts in one parameter (Family::stacked), which adapter_config.json names under target_parameters.
//
// ParamWrapper (peft/tuners/lora/layer.py) has two factors for such a parameter with E experts, at rank r: A
// is [E * r, in], expert after expert, and B is [out, r * E], in which column j * E + e is column j of expert
// e. The factors of the first parameter of the module "mlp.experts" are named mlp.experts.base_layer.lora_A
// and lora_B, those of the last one mlp.experts.lora_A and lora_B. Where the parameter is two matrices, gate
// and up, these share A, and B has the rows of the two. PEFT doubles the rank of such a parameter where
// target_modules named the two matrices (rank_pattern).
//
// Here every matrix of every expert has factors of its own, all of one rank. Smaller factors are padded by
// zeros, which training leaves as they are: their gradients are zero. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "models/families/adapters.h"
#include "models/weights/hf_weights.h"
#include "models/weights/stacked.h"

namespace sluice {

struct Family;
struct Model;
struct Stacked;

// What an adapter_config.json targets, with PEFT's own ranks. The rank of `adapters` is the largest of these.
struct PeftTargets {
  struct Parameter {
    const Stacked* stacked = nullptr;
    int64_t rank = 0;
  };
  Adapters adapters;
  int64_t rank = 0;                   // of linear modules
  std::vector<Parameter> parameters;  // in the order of Family::stacked
};

// A factor in a tensor of an adapter_model.safetensors; skip, step and rows are as in HfTensor::Piece.
struct FactorPart {
  std::string name;
  Shape shape;
  uint64_t skip = 0, step = 1;
  HfRows rows;
};

// How many factors a tensor has, judged by its shape and its name (without PEFT's prefix) alone. 0: it has no
// factors of experts, or cannot be divided into them.
StackSize factor_stack_size(const PeftTargets& targets, const std::string& name, const Shape& shape);

// The factors of a tensor; the caller has bounded the number of experts. A tensor for which
// factor_stack_size() is 0 is one part, under its own name.
std::vector<FactorPart> factor_parts(const Family& family, const PeftTargets& targets,
                                     const std::string& name, const Shape& shape);

// Exported adapters have a tensor for each factor of each expert, as PEFT had them before transformers 5.
// PEFT reads these for Mixtral, Qwen3-MoE and OLMoE, and turns them into its own form. Throws Error(usage)
// for adapters of experts that PEFT would refuse, pass over, or compute otherwise.
void check_peft_reads(const Adapters& adapters, const Model& model);

}  // namespace sluice
