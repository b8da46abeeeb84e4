// Op cases. op_conformance.h uses every case in several ways, as ggml's test-backend-ops does. A new op needs
// a line or more in op_cases().
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/expert_cases.h"

namespace sluice {

// Cases of attention with options that decide which keys a query sees and how large a score is. Blocks of
// kernels have 16 to 256 queries or keys. Windows and documents end inside of such blocks and on their edges.
inline std::vector<OpCase> attention_score_cases() {
  const OpAttributes h4_2{.sequence = 37, .heads = 4, .kv_heads = 2, .head_size = 32};
  const OpAttributes h2{.sequence = 130, .heads = 2, .kv_heads = 2, .head_size = 64};
  const OpAttributes h6_2{.sequence = 300, .heads = 6, .kv_heads = 2, .head_size = 16};
  const OpAttributes h4_1{.sequence = 330, .heads = 4, .kv_heads = 1, .head_size = 20};
  const OpAttributes h2_1{.sequence = 70, .heads = 2, .kv_heads = 1, .head_size = 128};
  const auto with = [](OpAttributes a, int64_t window, double soft_cap = 0, double scale = 0) {
    a.window = window, a.soft_cap = soft_cap, a.scale = scale;
    return a;
  };
  const std::vector<Shape> grouped = {{74, 128}, {74, 64}, {74, 64}}, packed = {{74, 256}};
  const std::vector<Shape> long_packed = {{260, 384}}, longer = {{330, 80}, {330, 20}, {330, 20}};
  const std::vector<Shape> wide = {{140, 512}}, pairs = {{600, 160}};
  const auto and_begins = [](std::vector<Shape> inputs) {
    inputs.push_back({inputs[0][0]});
    return inputs;
  };
  using enum OpKind;
  return {
      {"attention_window", attention, with(h4_2, 7), grouped, {}, 2},
      {"attention_window_of_one_key", attention, with(h4_2, 1), packed, {}},
      {"attention_window_of_a_block", attention, with(h2, 64), long_packed, {}},
      {"attention_window_beyond_a_block", attention, with(h2, 100), long_packed, {}, 2},
      {"attention_window_of_a_block_of_keys", attention, with(h6_2, 256), pairs, {}, 2, 0, true},
      {"attention_window_of_few_keys", attention, with(h4_1, 17), longer, {}, 2, 0, true},
      {"attention_window_of_many_keys", attention, with(h4_1, 270), longer, {}, 2, 0, true},
      {"attention_window_of_all_keys", attention, with(h4_2, 37), packed, {}},
      {"attention_window_beyond_the_sequence", attention, with(h4_2, 1000), packed, {}},
      {"attention_soft_cap", attention, with(h4_2, 0, 1.5), grouped, {}, 2},
      {"attention_soft_cap_long", attention, with(h2, 0, 30), long_packed, {}, 3},
      {"attention_scale", attention, with(h4_2, 0, 0, 0.3), grouped, {}},
      {"attention_documents", attention, h4_2, and_begins(grouped), {}, 2, 0, false, {5, 1, 1, 20}},
      {"attention_documents_packed", attention, h4_2, and_begins(packed), {}, 1, 0, false, {17, 20, 32}},
      {"attention_documents_of_one_token", attention, h4_2, and_begins(packed), {}, 1, 0, false, {1}},
      {"attention_one_document", attention, h4_2, and_begins(packed), {}},
      {"attention_documents_long", attention, h2, and_begins(long_packed), {}, 2, 0, false, {32, 33, 65, 64}},
      {"attention_documents_longer", attention, h4_1, and_begins(longer), {}, 2, 0, true, {100, 156, 3}},
      {"attention_documents_of_pairs", attention, h6_2, and_begins(pairs), {}, 2, 0, true, {256, 70}},
      {"attention_sinks", attention, h4_2, grouped, {{4}}, 2},
      {"attention_sinks_packed", attention, h4_2, packed, {{4}}},
      {"attention_sinks_wide_heads", attention, h2_1, wide, {{2}}},
      {"attention_sinks_longer", attention, h4_1, longer, {{4}}, 2, 0, true},
      {"attention_everything",
       attention,
       with(h4_2, 9, 2, 0.25),
       and_begins(grouped),
       {{4}},
       2,
       0,
       false,
       {21, 1, 13}},
      {"attention_everything_packed",
       attention,
       with(h4_2, 16, 5, 0.2),
       and_begins(packed),
       {{4}},
       1,
       0,
       false,
       {32, 6}},
      {"attention_everything_long",
       attention,
       with(h2, 50, 3, 0.15),
       and_begins(long_packed),
       {{2}},
       2,
       0,
       false,
       {64, 100}},
      {"attention_everything_wide_heads",
       attention,
       with(h2_1, 33, 10, 0.1),
       and_begins(wide),
       {{2}},
       1,
       0,
       false,
       {16, 40}},
      {"attention_everything_longer",
       attention,
       with(h4_1, 100, 4, 0.3),
       and_begins(longer),
       {{4}},
       2,
       0,
       true,
       {64, 200, 1}},
      {"attention_everything_of_pairs",
       attention,
       with(h6_2, 128, 4, 0.3),
       and_begins(pairs),
       {{6}},
       2,
       0,
       true,
       {200, 3}},
  };
}

// Cases of attention with heads of more than 128 columns. Kernels for such heads are cut otherwise: a block
// has 8 to 128 rows, and a tile has 8 to 32 rows of the other side.
inline std::vector<OpCase> widest_attention_cases() {
  const auto heads = [](int64_t sequence, int64_t count, int64_t kv, int64_t size) {
    return OpAttributes{.sequence = sequence, .heads = count, .kv_heads = kv, .head_size = size};
  };
  const auto with = [](OpAttributes a, int64_t window, double soft_cap = 0, double scale = 0) {
    a.window = window, a.soft_cap = soft_cap, a.scale = scale;
    return a;
  };
  using enum OpKind;
  return {
      {"attention_widest_heads", attention, heads(37, 1, 1, 256), {{37, 256}, {37, 256}, {37, 256}}, {}},
      {"attention_odd_widest_heads", attention, heads(19, 1, 1, 133), {{19, 399}}, {}},
      {"attention_heads_of_160_documents",
       attention,
       heads(21, 2, 1, 160),
       {{42, 320}, {42, 160}, {42, 160}, {42}},
       {},
       1,
       0,
       false,
       {5, 1, 12, 20}},
      {"attention_heads_of_192_window", attention, with(heads(45, 1, 1, 192), 10, 3), {{45, 576}}, {}},
      {"attention_widest_heads_long", attention, heads(139, 1, 1, 256), {{139, 768}}, {}, 1, 0, true},
      {"attention_everything_widest_heads_long",
       attention,
       with(heads(170, 2, 1, 256), 70, 5, 0.1),
       {{170, 512}, {170, 256}, {170, 256}, {170}},
       {{2}},
       1,
       0,
       true,
       {100, 33}},
      {"attention_everything_widest_heads",
       attention,
       with(heads(41, 2, 1, 256), 17, 10, 0.08),
       {{41, 1024}, {41}},
       {{2}},
       1,
       0,
       false,
       {16, 25}},
  };
}

// Frequencies of `pairs` pairs, from one radian per position down.
inline std::vector<double> frequencies(int64_t pairs, double theta = 10000) {
  std::vector<double> out;
  for (int64_t i = 0; i < pairs; ++i)
    out.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs)));
  return out;
}

// Cases of rope and embedding, with positions that depend on documents, heads of which only a part turns, and
// columns beyond the heads. Kernels take 32 positions, 64 frequencies and 8 columns at a time.
inline std::vector<OpCase> position_cases() {
  const OpAttributes t37{.sequence = 37}, scaled_t37{.sequence = 37, .scale = 0.375};
  const auto heads = [](int64_t sequence, int64_t count, int64_t size, int64_t pairs, double scale = 0) {
    OpAttributes a{
        .sequence = sequence, .heads = count, .head_size = size, .frequencies = frequencies(pairs)};
    a.scale = scale;
    return a;
  };
  using enum OpKind;
  return {
      {"embedding_scale", embedding, {.scale = 5.5}, {{74}}, {{300, 40}}},
      {"embedding_scale_positions", embedding, scaled_t37, {{74}}, {{300, 33}, {37, 33}}},
      {"embedding_documents",
       embedding,
       scaled_t37,
       {{74}, {74}},
       {{300, 40}, {37, 40}},
       1,
       0,
       false,
       {5, 1, 1, 20}},
      {"embedding_documents_odd", embedding, t37, {{74}, {74}}, {{30, 33}, {50, 33}}, 1, 0, false, {36, 1}},
      {"rope_part_of_a_head", rope, heads(37, 5, 32, 8), {{74, 160}}, {}},
      {"rope_odd_part_of_a_head", rope, heads(37, 3, 15, 5), {{37, 45}}, {}},
      {"rope_wide_heads", rope, heads(70, 2, 256, 128), {{70, 512}}, {}},
      {"rope_scale", rope, heads(37, 5, 32, 16, 1.25), {{74, 160}}, {}},
      {"rope_packed", rope, heads(37, 6, 32, 16), {{74, 256}}, {}},
      {"rope_packed_odd", rope, heads(19, 6, 9, 3, 0.75), {{38, 63}}, {}},
      {"rope_documents", rope, heads(37, 5, 32, 16), {{74, 160}, {74}}, {}, 1, 0, false, {17, 20, 32}},
      {"rope_documents_long",
       rope,
       heads(130, 2, 64, 32),
       {{260, 128}, {260}},
       {},
       1,
       0,
       false,
       {40, 33, 65}},
      {"rope_everything", rope, heads(37, 3, 20, 6, 1.5), {{74, 67}, {74}}, {}, 1, 0, false, {5, 1, 40}},
  };
}

// Cases of other ops with options.
inline std::vector<OpCase> option_cases() {
  const OpAttributes norm{.epsilon = 1e-5}, from_one{.epsilon = 1e-5, .weight_from_one = true};
  const OpAttributes gelu_gate{.gelu_gate = true}, none;
  const OpAttributes scaled{.scale = 0.22}, scaled_out_in{.weight_out_in = true, .scale = 1.5};
  const OpAttributes capped{.soft_cap = 1.5}, counted{.loss_rows = 16, .counts_right = true};
  const OpAttributes everything{.loss_rows = 16, .soft_cap = 2, .scale = 0.5, .counts_right = true};
  using enum OpKind;
  return {
      {"rms_norm_of_heads", rms_norm, norm, {{74, 160}}, {{32}}},
      {"rms_norm_of_odd_heads", rms_norm, norm, {{37, 99}}, {{33}}, 2},
      {"rms_norm_of_many_heads", rms_norm, norm, {{300, 512}}, {{64}}},
      {"rms_norm_of_wide_heads", rms_norm, from_one, {{19, 1040}}, {{520}}},
      {"rms_norm_of_single_columns", rms_norm, norm, {{5, 6}}, {{1}}},
      {"rms_norm_from_one", rms_norm, from_one, {{74, 160}}, {{160}}},
      {"rms_norm_from_one_odd", rms_norm, from_one, {{37, 33}}, {{33}}, 2},
      {"rms_norm_from_one_of_heads", rms_norm, from_one, {{37, 96}}, {{24}}},
      {"rms_norm_from_one_widest", rms_norm, from_one, {{2, 5200}}, {{5200}}},
      {"linear_scale", linear, scaled, {{37, 160}}, {{160, 48}, {48}}},
      {"linear_scale_out_in", linear, scaled_out_in, {{37, 40}}, {{24, 40}}},
      {"linear_scale_odd", linear, scaled_out_in, {{5, 33}}, {{17, 33}, {17}}},
      {"linear_scale_tiles", linear, scaled, {{300, 161}}, {{161, 600}, {600}}, 1, 0, true},
      {"swiglu_gelu", swiglu, gelu_gate, {{37, 33}, {37, 33}}, {}, 6},
      {"swiglu_gelu_many", swiglu, gelu_gate, {{74, 1000}, {74, 1000}}, {}, 3},
      {"swiglu_packed", swiglu, none, {{37, 66}}, {}, 6},
      {"swiglu_packed_many", swiglu, none, {{74, 2000}}, {}, 3},
      {"swiglu_packed_one", swiglu, none, {{1, 2}}, {}},
      {"swiglu_packed_gelu", swiglu, gelu_gate, {{37, 80}}, {}, 6},
      {"cross_entropy_cap", linear_cross_entropy, capped, {{37, 40}, {37}}, {{300, 40}}, 3},
      {"cross_entropy_cap_odd", linear_cross_entropy, capped, {{74, 33}, {74}}, {{1031, 33}}},
      {"cross_entropy_cap_widest", linear_cross_entropy, capped, {{3, 8}, {3}}, {{20011, 8}}, 2},
      {"cross_entropy_scale", linear_cross_entropy, scaled, {{37, 40}, {37}}, {{300, 40}}, 3},
      {"cross_entropy_count", linear_cross_entropy, counted, {{37, 40}, {37}}, {{300, 40}}},
      {"cross_entropy_count_odd", linear_cross_entropy, counted, {{74, 33}, {74}}, {{1031, 33}}},
      {"cross_entropy_everything", linear_cross_entropy, everything, {{37, 40}, {37}}, {{300, 40}}, 4},
  };
}

// The sizes cross the blocks of fast kernels: rows above 512, depths above 1024, sequences above 256, and
// partial vectors.
inline std::vector<OpCase> op_cases() {
  const OpAttributes none;
  const OpAttributes rows16{.loss_rows = 16}, rows512{.loss_rows = 512};
  const OpAttributes norm{.epsilon = 1e-5}, out_in{.weight_out_in = true}, t37{.sequence = 37};
  const OpAttributes h5{
      .sequence = 37, .heads = 5, .kv_heads = 5, .head_size = 32, .frequencies = frequencies(16)};
  const OpAttributes h4_2{.sequence = 37, .heads = 4, .kv_heads = 2, .head_size = 32};
  const OpAttributes h5_1{.sequence = 19, .heads = 5, .kv_heads = 1, .head_size = 9};
  const OpAttributes h2{.sequence = 130, .heads = 2, .kv_heads = 2, .head_size = 64};
  const OpAttributes h4_1{.sequence = 330, .heads = 4, .kv_heads = 1, .head_size = 20};
  const OpAttributes h2_1{.sequence = 70, .heads = 2, .kv_heads = 1, .head_size = 128};
  const OpAttributes h2_1_long{.sequence = 150, .heads = 2, .kv_heads = 1, .head_size = 128};
  const OpAttributes h1{.sequence = 33, .heads = 1, .kv_heads = 1, .head_size = 75};
  const OpAttributes single{
      .sequence = 1, .heads = 3, .kv_heads = 3, .head_size = 6, .frequencies = frequencies(3)};
  const OpAttributes tiny{
      .sequence = 5, .heads = 2, .kv_heads = 2, .head_size = 6, .frequencies = frequencies(3, 100)};
  using enum OpKind;
  std::vector<OpCase> cases = {
      {"embedding", embedding, none, {{74}}, {{300, 40}}},
      {"embedding_positions", embedding, t37, {{74}}, {{300, 40}, {37, 40}}},
      {"embedding_spare_positions", embedding, t37, {{37}}, {{300, 33}, {50, 33}}},
      {"embedding_wide", embedding, t37, {{111}}, {{50, 150}, {37, 150}}},
      {"embedding_wider", embedding, none, {{20}}, {{9, 2056}}},
      {"embedding_many_rows", embedding, none, {{1100}}, {{50, 12}}, 1, 0, true},
      {"embedding_one_row", embedding, none, {{1}}, {{7, 5}}},
      {"layer_norm", layer_norm, norm, {{74, 160}}, {{160}, {160}}},
      {"layer_norm_one_row", layer_norm, norm, {{1, 7}}, {{7}, {7}}},
      {"layer_norm_far_mean", layer_norm, norm, {{37, 33}}, {{33}, {33}}, 1, 8},
      {"layer_norm_many_rows", layer_norm, norm, {{600, 65}}, {{65}, {65}}},
      {"layer_norm_wide", layer_norm, norm, {{5, 1030}}, {{1030}, {1030}}},
      {"layer_norm_wider", layer_norm, norm, {{3, 2304}}, {{2304}, {2304}}},
      {"layer_norm_widest", layer_norm, norm, {{2, 5200}}, {{5200}, {5200}}},
      {"rms_norm", rms_norm, norm, {{74, 160}}, {{160}}},
      {"rms_norm_one_row", rms_norm, norm, {{1, 7}}, {{7}}},
      {"rms_norm_odd", rms_norm, norm, {{37, 33}}, {{33}}, 2},
      {"rms_norm_many_rows", rms_norm, norm, {{600, 65}}, {{65}}},
      {"rms_norm_wide", rms_norm, norm, {{5, 1030}}, {{1030}}},
      {"rms_norm_widest", rms_norm, norm, {{2, 5200}}, {{5200}}},
      {"linear", linear, none, {{37, 40}}, {{40, 24}}},
      {"linear_bias", linear, none, {{37, 160}}, {{160, 48}, {48}}},
      {"linear_out_in", linear, out_in, {{37, 40}}, {{24, 40}}},
      {"linear_out_in_bias", linear, out_in, {{5, 33}}, {{17, 33}, {17}}},
      {"linear_out_in_whole_vectors", linear, out_in, {{74, 33}}, {{16, 33}, {16}}},
      {"linear_odd", linear, none, {{5, 33}}, {{33, 17}, {17}}},
      {"linear_odd_without_bias", linear, none, {{5, 33}}, {{33, 17}}},
      {"linear_one", linear, none, {{1, 1}}, {{1, 1}, {1}}},
      {"linear_one_row", linear, none, {{1, 3}}, {{3, 1}, {1}}},
      {"linear_one_row_out_in", linear, out_in, {{1, 160}}, {{300, 160}}},
      {"linear_tiles", linear, none, {{300, 161}}, {{161, 600}, {600}}, 1, 0, true},
      {"linear_tiles_out_in", linear, out_in, {{515, 161}}, {{300, 161}}, 1, 0, true},
      {"linear_deep", linear, none, {{17, 1100}}, {{1100, 33}}, 1, 0, true},
      {"linear_deep_out_in", linear, out_in, {{1100, 17}}, {{1050, 17}, {1050}}, 1, 0, true},
      {"gelu", gelu, none, {{37, 33}}, {}, 6},
      {"gelu_one", gelu, none, {{1, 1}}, {}},
      {"gelu_many", gelu, none, {{74, 1000}}, {}, 3},
      {"swiglu", swiglu, none, {{37, 33}, {37, 33}}, {}, 6},
      {"swiglu_one", swiglu, none, {{1, 1}, {1, 1}}, {}},
      {"swiglu_many", swiglu, none, {{74, 1000}, {74, 1000}}, {}, 3},
      {"rope", rope, h5, {{74, 160}}, {}},
      {"rope_tiny", rope, tiny, {{5, 12}}, {}},
      {"rope_one_row", rope, single, {{1, 18}}, {}},
      {"attention", attention, h5, {{74, 160}, {74, 160}, {74, 160}}, {}},
      {"attention_packed", attention, h5, {{74, 480}}, {}},
      {"attention_grouped", attention, h4_2, {{74, 128}, {74, 64}, {74, 64}}, {}, 2},
      {"attention_packed_grouped", attention, h4_2, {{74, 256}}, {}},
      {"attention_multi_query", attention, h5_1, {{38, 45}, {38, 9}, {38, 9}}, {}, 3},
      {"attention_wide_heads", attention, h2_1, {{70, 256}, {70, 128}, {70, 128}}, {}},
      {"attention_wide_heads_long", attention, h2_1_long, {{300, 512}}, {}, 1, 0, true},
      {"attention_odd_wide_heads", attention, h1, {{66, 225}}, {}},
      {"attention_one_row", attention, single, {{1, 54}}, {}},
      {"attention_one_token_sequences", attention, single, {{4, 54}}, {}},
      {"attention_long", attention, h2, {{260, 384}}, {}, 2},
      {"attention_longer", attention, h4_1, {{330, 80}, {330, 20}, {330, 20}}, {}, 2, 0, true},
      {"add", add, none, {{37, 33}, {37, 33}}, {}},
      {"add_one", add, none, {{1, 1}, {1, 1}}, {}},
      {"add_many", add, none, {{74, 1000}, {74, 1000}}, {}},
      {"cross_entropy", linear_cross_entropy, none, {{37, 40}, {37}}, {{300, 40}}},
      {"cross_entropy_one_row", linear_cross_entropy, none, {{1, 5}, {1}}, {{7, 5}}},
      {"cross_entropy_odd", linear_cross_entropy, none, {{74, 33}, {74}}, {{1031, 33}}},
      {"cross_entropy_wide", linear_cross_entropy, none, {{5, 8}, {5}}, {{9001, 8}}},
      {"cross_entropy_widest", linear_cross_entropy, none, {{3, 8}, {3}}, {{20011, 8}}},
      {"cross_entropy_parts", linear_cross_entropy, rows16, {{37, 40}, {37}}, {{300, 40}}},
      {"cross_entropy_wide_parts", linear_cross_entropy, rows512, {{520, 8}, {520}}, {{3001, 8}}, 1, 0, true},
  };
  for (const auto& more :
       {attention_score_cases(), widest_attention_cases(), position_cases(), option_cases(), expert_cases()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

// Cases of ops without a backward, and of other ops whose rows are a part of a longer sequence. Kernels take
// 256 keys and 8 columns at a time.
inline std::vector<OpCase> forward_cases() {
  const auto heads = [](int64_t sequence, int64_t context, int64_t count, int64_t kv, int64_t size) {
    return OpAttributes{
        .sequence = sequence, .context = context, .heads = count, .kv_heads = kv, .head_size = size};
  };
  const auto with = [](OpAttributes a, int64_t window, double soft_cap = 0, double scale = 0) {
    a.window = window, a.soft_cap = soft_cap, a.scale = scale;
    return a;
  };
  OpAttributes turned = heads(5, 90, 3, 3, 20);
  turned.frequencies = frequencies(6), turned.scale = 1.5;
  OpAttributes turned_one = heads(1, 700, 4, 4, 32);
  turned_one.frequencies = frequencies(16);
  using enum OpKind;
  const auto packed = [](const OpAttributes& a, int64_t sequences) {
    const int64_t rows = sequences * a.sequence, kv = a.kv_heads * a.head_size;
    return std::vector<Shape>{{sequences, a.context, 2 * kv}, {rows}, {rows, a.heads * a.head_size + 2 * kv}};
  };
  const auto apart = [](const OpAttributes& a, int64_t sequences) {
    const int64_t rows = sequences * a.sequence, kv = a.kv_heads * a.head_size;
    return std::vector<Shape>{
        {sequences, a.context, 2 * kv}, {rows}, {rows, a.heads * a.head_size}, {rows, kv}, {rows, kv}};
  };
  const OpAttributes token = heads(1, 40, 4, 2, 32), odd = heads(1, 19, 5, 1, 9),
                     part = heads(7, 33, 4, 2, 16);
  const OpAttributes far = heads(1, 700, 4, 1, 64), wide = heads(3, 20, 2, 1, 128),
                     widest = heads(2, 9, 1, 1, 256);
  const auto cased = [](std::string name, const OpAttributes& a, std::vector<Shape> inputs,
                        std::vector<int64_t> before, int64_t idle = 0, std::vector<Shape> parameters = {}) {
    OpCase c{std::move(name), cached_attention, a, std::move(inputs), std::move(parameters), 2};
    c.before = std::move(before), c.idle = idle;
    return c;
  };
  std::vector<OpCase> cases = {
      cased("cached_attention_first_token", token, packed(token, 1), {0}),
      cased("cached_attention_token", token, packed(token, 3), {0, 17, 39}),
      cased("cached_attention_token_apart", token, apart(token, 2), {3, 30}),
      cased("cached_attention_odd", odd, apart(odd, 2), {18, 2}),
      cased("cached_attention_part", part, packed(part, 2), {0, 26}),
      cased("cached_attention_idle_rows", part, apart(part, 3), {0, 5, 28}, 2),
      cased("cached_attention_idle_sequence", part, packed(part, 2), {4, 9}, 7),
      cased("cached_attention_far", far, packed(far, 2), {699, 300}),
      cased("cached_attention_wide_heads", wide, apart(wide, 2), {0, 17}),
      cased("cached_attention_widest_heads", widest, packed(widest, 1), {7}),
      cased("cached_attention_window", with(part, 4), packed(part, 2), {0, 26}),
      cased("cached_attention_window_far", with(far, 270), packed(far, 2), {699, 100}),
      cased("cached_attention_window_of_one_key", with(token, 1), packed(token, 2), {0, 20}),
      cased("cached_attention_soft_cap", with(part, 0, 1.5), apart(part, 2), {3, 9}),
      cased("cached_attention_scale", with(part, 0, 0, 0.3), apart(part, 2), {3, 9}),
      cased("cached_attention_sinks", part, packed(part, 2), {0, 20}, 1, {{4}}),
      cased("cached_attention_everything", with(part, 9, 2, 0.25), apart(part, 3), {0, 9, 24}, 1, {{4}}),
  };
  const auto also = [&](OpCase c, std::vector<int64_t> before, int64_t idle) {
    c.before = std::move(before), c.idle = idle;
    cases.push_back(std::move(c));
  };
  also({"rope_of_parts", rope, turned, {{15, 67}, {15}}, {}}, {0, 31, 85}, 1);
  also({"rope_of_tokens", rope, turned_one, {{3, 128}, {3}}, {}}, {0, 64, 699}, 0);
  also({"embedding_of_parts", embedding, {.sequence = 5, .context = 60}, {{15}, {15}}, {{300, 33}, {64, 33}}},
       {0, 31, 55}, 1);
  also({"pick_rows", pick_rows, {}, {{37, 40}, {5}}, {}}, {}, 0);
  also({"pick_rows_odd", pick_rows, {}, {{3, 33}, {7}}, {}}, {}, 0);
  return cases;
}

// Whether a device may round matrices to the working precision between the products of this op.
inline bool rounds_between_products(OpKind kind) {
  return kind == OpKind::attention || kind == OpKind::linear_cross_entropy;
}

}  // namespace sluice
