// Shape rules, flops and examples of the ops of a mixture of experts, for the table of ops (op_table.cc).
// Rules throw std::invalid_argument with a sentence when the operands do not fit. Flops and bytes of an
// expert's ops count the rows that predictions assume; products compute whole tiles of rows.
#pragma once

#include <span>
#include <vector>

#include "engine/graph/op.h"

namespace sluice {

void infer_router(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_route(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_router_statistics(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_router_loss(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_dispatch(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_expert_linear(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_expert_swiglu(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_combine(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_add_noise(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_add_shared_sum(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_repeat(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_all_gather(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_all_to_all(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);
void infer_all_to_allv(const OpShapes& in, std::vector<Shape>& outputs, std::vector<DType>& dtypes);

// The rules of ops between ranks, in the order of OpKind.
std::span<const OpRule> rules_between_ranks();

double router_flops(const OpShapes& s, Pass pass);
double route_flops(const OpShapes& s, Pass pass);
double router_statistics_flops(const OpShapes& s, Pass pass);
double router_loss_flops(const OpShapes& s, Pass pass);
double expert_linear_flops(const OpShapes& s, Pass pass);
double expert_swiglu_flops(const OpShapes& s, Pass pass);
double combine_flops(const OpShapes& s, Pass pass);

std::vector<OpExample> router_examples(const ExampleSizes& n);
std::vector<OpExample> route_examples(const ExampleSizes& n);
std::vector<OpExample> router_statistics_examples(const ExampleSizes& n);
std::vector<OpExample> router_loss_examples(const ExampleSizes& n);
std::vector<OpExample> dispatch_examples(const ExampleSizes& n);
std::vector<OpExample> combine_examples(const ExampleSizes& n);
std::vector<OpExample> expert_linear_examples(const ExampleSizes& n);
std::vector<OpExample> expert_swiglu_examples(const ExampleSizes& n);
std::vector<OpExample> add_noise_examples(const ExampleSizes& n);
std::vector<OpExample> add_shared_sum_examples(const ExampleSizes& n);
std::vector<OpExample> repeat_examples(const ExampleSizes& n);

}  // namespace sluice
