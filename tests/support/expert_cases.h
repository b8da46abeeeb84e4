// Op cases of a mixture of experts, and the routing of an op of one expert. Kernels take 64 rows of an expert
// at a time, and 8 columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/graph/draws.h"
#include "engine/graph/routing.h"
#include "tests/support/op_case.h"

namespace sluice {

inline std::vector<OpCase> router_cases() {
  const OpAttributes none;
  using Scores = Routing::Scores;
  const auto routes = [](const Routing& routing) { return OpAttributes{.routing = routing}; };
  const auto of = [&](int64_t experts, int64_t chosen, Scores scores = Scores::softmax,
                      bool normalized = false) {
    return Routing{.experts = experts, .chosen = chosen, .scores = scores, .normalized = normalized};
  };
  Routing groups = of(16, 3, Scores::sigmoid, true), best = of(15, 4);
  groups.groups = 4, groups.best_groups = 2, groups.group_scores = 2, groups.scale = 2.5;
  best.groups = 5, best.best_groups = 3, best.group_scores = 1, best.scale = 16;
  Routing losses = of(6, 2);
  Routing capacity = of(8, 1), two = of(6, 2, Scores::softmax, true), many = of(64, 2, Scores::softmax, true);
  capacity.capacity_factor = 0.8, capacity.group_rows = 37, capacity.least_capacity = 2;
  two.capacity_factor = 1.25, two.group_rows = 50, two.random_second = true, two.counted = 1;
  many.capacity_factor = 1, many.group_rows = 150, many.random_second = true;
  Routing random = two;
  random.capacity_factor = 0;
  losses.layers = 3, losses.balance_loss = 0.5, losses.z_loss = 0.25;
  const auto size = [](int64_t rows, const Routing& r) {
    return RoutingLayout{rows, r.experts, r.chosen}.size();
  };
  using enum OpKind;
  return {
      {"router", router, none, {{37, 40}}, {{6, 40}}},
      {"router_bias", router, none, {{37, 33}}, {{8, 33}, {8}}},
      {"router_many_experts", router, none, {{74, 160}}, {{128, 160}}},
      {"router_one_expert", router, none, {{1, 5}}, {{1, 5}}},
      {"route", route, routes(of(8, 2)), {{37, 8}}, {}, 3},
      {"route_normalized", route, routes(of(8, 2, Scores::softmax, true)), {{37, 8}}, {}, 3},
      {"route_chosen", route, routes(of(7, 4, Scores::softmax_chosen)), {{37, 7}}, {}, 3},
      {"route_sigmoid", route, routes(of(8, 3, Scores::sigmoid)), {{37, 8}}, {}, 3},
      {"route_groups", route, routes(groups), {{74, 16}}, {{16}}, 3},
      {"route_best_of_groups", route, routes(best), {{37, 15}}, {}, 3},
      {"route_equal_logits", route, routes(of(9, 3)), {{5, 9}}, {}, 0},
      {"route_one_of_one", route, routes(of(1, 1)), {{3, 1}}, {}},
      {"route_all", route, routes(of(5, 5, Scores::softmax, true)), {{37, 5}}, {}, 2},
      {"route_many", route, routes(of(128, 8, Scores::softmax, true)), {{300, 128}}, {}, 4},
      {"route_capacity", route, routes(capacity), {{74, 8}}, {}, 3},
      {"route_random_second", route, routes(random), {{100, 6}, {kDrawWords}}, {}, 3},
      {"route_capacity_random", route, routes(two), {{100, 6}, {kDrawWords}}, {}, 3},
      {"route_capacity_many", route, routes(many), {{300, 64}, {kDrawWords}}, {}, 3},
      {"router_statistics_counted", router_statistics, routes(two), {{100, 6}, {size(100, two)}}, {}, 3},
      {"router_statistics", router_statistics, routes(of(8, 2)), {{37, 8}, {size(37, of(8, 2))}}, {}, 3},
      {"router_statistics_padded",
       router_statistics,
       routes(of(8, 2)),
       {{74, 8}, {size(74, of(8, 2))}, {74}},
       {},
       3},
      {"router_statistics_padded_many",
       router_statistics,
       routes(of(60, 4)),
       {{1100, 60}, {size(1100, of(60, 4))}, {1100}},
       {},
       3,
       0,
       true},
      {"router_statistics_dropped",
       router_statistics,
       routes(capacity),
       {{74, 8}, {size(74, capacity)}},
       {},
       3},
      {"router_statistics_many",
       router_statistics,
       routes(of(60, 4)),
       {{1100, 60}, {size(1100, of(60, 4))}},
       {},
       3,
       0,
       true},
      {"router_loss", router_loss, routes(losses), {{1, 14}, {37}}, {}},
      {"router_loss_one_row", router_loss, routes(losses), {{1, 14}, {1}}, {}},
  };
}

inline std::vector<OpCase> expert_cases() {
  std::vector<OpCase> cases = router_cases();
  const Routing few{.experts = 5, .chosen = 2}, many{.experts = 3, .chosen = 2};
  const auto one = [&](std::string name, OpKind kind, OpAttributes a, int64_t rows,
                       const std::vector<Shape>& tensors, std::vector<Shape> parameters,
                       OpCase::Crowd crowd) {
    const Routing& r = a.routing;
    std::vector<Shape> inputs = {{RoutingLayout{rows, r.experts, r.chosen}.size()}};
    inputs.insert(inputs.end(), tensors.begin(), tensors.end());
    if (r.weighted) inputs.push_back({rows, r.chosen});
    OpCase c{std::move(name), kind, a, std::move(inputs), std::move(parameters), 2};
    c.crowd = crowd;
    cases.push_back(std::move(c));
  };
  const auto with = [](Routing r, bool weighted, bool out_in = false, bool gelu = false) {
    r.weighted = weighted;
    return OpAttributes{.weight_out_in = out_in, .gelu_gate = gelu, .routing = r};
  };
  using enum OpKind;
  using enum OpCase::Crowd;
  OpAttributes scaled = with(few, true, true);
  scaled.scale = 0.5;
  one("dispatch", dispatch, with(few, false), 37, {{37, 40}}, {}, some);
  one("dispatch_odd", dispatch, with(many, false), 150, {{150, 33}}, {}, some);
  one("dispatch_all", dispatch, with(few, false), 70, {{70, 40}}, {}, all);
  one("dispatch_none", dispatch, with(few, false), 70, {{70, 40}}, {}, none);
  one("combine", combine, with(few, false), 37, {{64, 40}}, {}, some);
  one("combine_odd", combine, with(many, false), 150, {{192, 33}}, {}, some);
  one("combine_all", combine, with(few, false), 70, {{128, 40}}, {}, all);
  one("combine_none", combine, with(few, false), 70, {{128, 40}}, {}, none);
  one("expert_linear", expert_linear, with(few, false), 37, {{64, 40}}, {{40, 24}}, some);
  one("expert_linear_bias", expert_linear, with(few, false), 37, {{64, 40}}, {{40, 24}, {24}}, some);
  one("expert_linear_weighted", expert_linear, scaled, 100, {{128, 33}}, {{17, 33}, {17}}, some);
  one("expert_linear_all", expert_linear, with(few, false, true), 130, {{192, 72}}, {{40, 72}}, all);
  one("expert_linear_tiles", expert_linear, with(many, false, true), 300, {{320, 161}}, {{500, 161}}, some);
  cases.back().large = true;
  one("expert_linear_none", expert_linear, with(few, true, true), 70, {{128, 40}}, {{24, 40}, {24}}, none);
  one("expert_swiglu", expert_swiglu, with(few, true), 37, {{64, 40}, {64, 40}}, {}, some);
  one("expert_swiglu_odd", expert_swiglu, with(many, true), 150, {{192, 33}, {192, 33}}, {}, some);
  one("expert_swiglu_packed", expert_swiglu, with(many, true, false, true), 150, {{192, 66}}, {}, some);
  one("expert_swiglu_gelu", expert_swiglu, with(few, false, false, true), 37, {{64, 40}, {64, 40}}, {}, some);
  OpAttributes clamped = with(few, true);
  clamped.swiglu_limit = 1.3, clamped.swiglu_alpha = 1.702;
  one("expert_swiglu_clamped", expert_swiglu, clamped, 37, {{64, 40}, {64, 40}}, {}, some);
  one("expert_swiglu_clamped_odd", expert_swiglu, clamped, 150, {{192, 66}}, {}, some);
  one("expert_swiglu_all", expert_swiglu, with(few, true), 128, {{128, 24}, {128, 24}}, {}, all);
  one("expert_swiglu_none", expert_swiglu, with(few, true), 70, {{128, 40}, {128, 40}}, {}, none);
  Routing full = few;
  full.capacity_factor = 0.5, full.group_rows = 75;  // 15 rows of a group, 30 in all
  one("dispatch_capacity", dispatch, with(full, false), 150, {{150, 40}}, {}, all);
  one("combine_capacity", combine, with(full, false), 150, {{64, 40}}, {}, all);
  one("expert_linear_capacity", expert_linear, with(full, true), 150, {{64, 40}}, {{40, 24}, {24}}, all);
  one("expert_swiglu_capacity", expert_swiglu, with(full, true), 150, {{64, 40}, {64, 40}}, {}, all);
  OpAttributes plain = with(few, true, false, true), silu = with(many, false);
  plain.ungated = silu.ungated = true;
  one("expert_swiglu_ungated", expert_swiglu, plain, 37, {{64, 40}}, {}, some);
  one("expert_swiglu_ungated_silu", expert_swiglu, silu, 150, {{192, 33}}, {}, some);
  one("expert_swiglu_ungated_none", expert_swiglu, plain, 70, {{128, 40}}, {}, none);
  cases.push_back({"add_noise", add_noise, {}, {{37, 6}, {37, 6}, {kDrawWords}}, {}, 2});
  cases.push_back({"add_noise_many", add_noise, {}, {{74, 64}, {74, 64}, {kDrawWords}}, {}, 2});
  cases.push_back({"add_shared_sum", add_shared_sum, {}, {{37, 33}, {37, 33}, {37, 33}, {37, 2}}, {}});
  cases.push_back({"add_shared_sum_one", add_shared_sum, {}, {{1, 1}, {1, 1}, {1, 1}, {1, 2}}, {}});
  cases.push_back(
      {"add_shared_sum_many", add_shared_sum, {}, {{74, 480}, {74, 480}, {74, 480}, {74, 2}}, {}});
  cases.push_back({"add_sum", add_sum, {}, {{37, 33}, {37, 33}}, {}});
  cases.push_back({"add_sum_one", add_sum, {}, {{1, 1}, {1, 1}}, {}});
  cases.push_back({"add_sum_many", add_sum, {}, {{74, 1000}, {74, 1000}}, {}});
  const OpAttributes two{.routing = {.experts = 4, .chosen = 2, .over = {"experts", 2}}},
      four{.routing = {.experts = 4, .chosen = 2, .over = {"experts", 4}}};
  cases.push_back({"repeat", repeat, two, {{37, 3}}, {}});
  cases.push_back({"repeat_one", repeat, two, {{1, 1}}, {}});
  cases.push_back({"repeat_many", repeat, four, {{2100, 8}}, {}});
  return cases;
}

// The routing of a case, and the expert whose op it is.
struct CaseRouting {
  std::vector<int32_t> routing;
  int64_t expert = 0, rows = 0;  // rows: of the expert

  int64_t with_zeros() const { return expert_rows_most(rows); }
};

inline CaseRouting routing_of(const OpCase& c, int64_t elements) {
  const Routing& r = c.attributes.routing;
  const RoutingLayout layout = routing_layout(r, elements);
  std::vector<int32_t> experts;
  std::mt19937 generator(7);
  const int64_t open = r.experts - (c.crowd == OpCase::Crowd::none ? 1 : 0);  // the last expert gets no row
  for (int64_t row = 0; row < layout.rows; ++row) {
    std::vector<int32_t> of_row;
    if (c.crowd == OpCase::Crowd::all) of_row.push_back(0);
    while (static_cast<int64_t>(of_row.size()) < r.chosen) {
      const auto expert = static_cast<int32_t>(generator() % static_cast<uint64_t>(open));
      if (std::ranges::find(of_row, expert) == of_row.end()) of_row.push_back(expert);
    }
    std::ranges::rotate(of_row, of_row.begin() + row % r.chosen);
    experts.insert(experts.end(), of_row.begin(), of_row.end());
  }
  const auto taken = r.drops() ? taken_choices(r, experts) : std::vector<bool>();
  CaseRouting out{make_routing(layout, experts, taken),
                  c.crowd == OpCase::Crowd::none ? r.experts - 1 : experts[0]};
  const auto e = static_cast<size_t>(out.expert);
  out.rows = out.routing[e + 1] - out.routing[e];
  return out;
}

}  // namespace sluice
