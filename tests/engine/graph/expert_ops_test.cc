// What the ops of a mixture of experts refuse, and their flops and bytes, by numbers worked out by hand.
#include "engine/graph/expert_ops.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "engine/graph/draws.h"
#include "engine/graph/routing.h"

namespace sluice {
namespace {

using enum OpKind;

// Each of 6 rows chooses 2 of 4 experts. The routing then has 5 begins, 12 entries and 12 experts.
const Routing kTwoOfFour{.experts = 4, .chosen = 2};
constexpr int64_t kRouting = 29;

OpShapes shapes(OpKind kind, std::vector<Shape> inputs, std::vector<Shape> parameters = {},
                const OpAttributes& attributes = {.routing = kTwoOfFour}) {
  OpShapes s{kind, attributes, DType::bf16, std::move(inputs), {}, std::move(parameters)};
  return s;
}

std::string refusal(const OpShapes& s) {
  try {
    std::vector<Shape> outputs;
    std::vector<DType> types;
    op_rule(s.kind).infer(s, outputs, types);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

OpAttributes with(const std::function<void(Routing&)>& change) {
  OpAttributes a{.routing = kTwoOfFour};
  change(a.routing);
  return a;
}

TEST(ExpertOps, RoutersRefuseWhatDoesNotFit) {
  EXPECT_EQ(refusal(shapes(router, {{6, 8}}, {{4, 8}, {4}})), "accepted");
  EXPECT_EQ(refusal(shapes(router, {{6, 8}}, {{4, 9}})),
            "router: the input has 8 columns, the weight [4, 9] takes 9.");
  EXPECT_EQ(refusal(shapes(router, {{6, 8}}, {{4, 8}, {5}})),
            "router: the bias has shape [5] where [4] is needed.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}})), "accepted");
  EXPECT_EQ(refusal(shapes(route, {{6, 5}})),
            "route: the matrix of logits has shape [6, 5] where [6, 4] is needed.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, with([](Routing& r) { r.chosen = 5; }))),
            "route: 5 of 4 experts cannot be chosen.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {{4}})),
            "route: correction biases and sums of scores are for sigmoids.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, with([](Routing& r) { r.groups = 3; }))),
            "route: 4 experts are not 3 groups of equal size.");
  const auto groups = [](int64_t best, int64_t scores, int64_t chosen) {
    return with([&](Routing& r) {
      r.scores = Routing::Scores::sigmoid;
      r.groups = 2, r.best_groups = best, r.group_scores = scores, r.chosen = chosen;
    });
  };
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, groups(1, 2, 2))), "accepted");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, groups(3, 2, 2))),
            "route: the best 3 of 2 groups are not possible.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, groups(1, 3, 2))),
            "route: 3 scores of a group of 2 do not exist.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, groups(1, 1, 3))), "route: 3 experts cannot be chosen of 2.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, with([](Routing& r) { r.scale = -1; }))),
            "route: the scale -1 is neither a positive number nor 0.");
  EXPECT_EQ(refusal(shapes(route, {{int64_t{1} << 30, 4}})),
            "route: 1073741824 rows are too many for 32-bit entries and logits.");
  EXPECT_EQ(refusal(shapes(route, {{int64_t{1} << 29, 4}})),
            "route: 536870912 rows are too many for 32-bit entries and logits.");
  const auto capacity = [&](double factor, int64_t rows) {
    return with([&](Routing& r) { r.capacity_factor = factor, r.group_rows = rows; });
  };
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, capacity(1.25, 3))), "accepted");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, capacity(1.25, 4))),
            "route: 6 rows are not whole groups of 4.");
  EXPECT_EQ(refusal(shapes(dispatch, {{kRouting}, {6, 8}}, {}, capacity(1.25, 4))),
            "dispatch: 6 rows are not whole groups of 4.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, capacity(-1, 3))),
            "route: a capacity of -1 times the fair share, and at least 0, is not possible.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, with([](Routing& r) { r.counted = 3; }))),
            "route: 3 of 2 choices cannot count.");
  const auto random = with([](Routing& r) { r.random_second = r.normalized = true, r.group_rows = 6; });
  EXPECT_EQ(refusal(shapes(route, {{6, 4}, {kDrawWords}}, {}, random)), "accepted");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}}, {}, random)),
            "route: draws come with a random second choice, and with no other.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}, {kDrawWords}})),
            "route: draws come with a random second choice, and with no other.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}, {3}}, {}, random)),
            "route: the vector of draws has shape [3] where [5] is needed.");
  EXPECT_EQ(refusal(shapes(route, {{6, 4}, {kDrawWords}}, {},
                           with([](Routing& r) { r.random_second = true, r.group_rows = 6; }))),
            "route: a second choice is random only of two whose weights sum to 1.");
  EXPECT_EQ(refusal(shapes(add_noise, {{6, 4}, {6, 4}, {kDrawWords}})), "accepted");
  EXPECT_EQ(refusal(shapes(add_noise, {{6, 4}, {6, 3}, {kDrawWords}})),
            "add_noise: the matrix of deviations has shape [6, 3] where [6, 4] is needed.");
  EXPECT_EQ(refusal(shapes(add_shared_sum, {{6, 8}, {6, 8}, {6, 8}, {6, 2}})), "accepted");
  EXPECT_EQ(refusal(shapes(add_shared_sum, {{6, 8}, {6, 8}, {6, 8}, {6, 3}})),
            "add_shared_sum: the matrix of shares has shape [6, 3] where [6, 2] is needed.");
  EXPECT_EQ(refusal(shapes(router_statistics, {{6, 4}, {kRouting}})), "accepted");
  EXPECT_EQ(refusal(shapes(router_statistics, {{6, 4}, {kRouting + 1}})),
            "router_statistics: the routing has shape [30] where [29] is needed.");
  EXPECT_EQ(refusal(shapes(router_loss, {{1, 10}, {6}})), "router_loss: 0 layers have no routers.");
  EXPECT_EQ(
      refusal(shapes(router_loss, {{1, 10}, {6}}, {}, with([](Routing& r) { r.layers = 1, r.z_loss = -1; }))),
      "router_loss: the factors 0 and -1 are not both numbers of 0 or more.");
}

TEST(ExpertOps, ExpertsRefuseWhatDoesNotFit) {
  const OpAttributes weighted = with([](Routing& r) { r.weighted = true; });
  EXPECT_EQ(refusal(shapes(dispatch, {{kRouting}, {6, 8}})), "accepted");
  EXPECT_EQ(refusal(shapes(dispatch, {{kRouting}, {7, 8}})),
            "dispatch: the input has shape [7, 8] where [6, 8] is needed.");
  EXPECT_EQ(refusal(shapes(dispatch, {{kRouting + 1}, {6, 8}})),
            "dispatch: the routing has shape [30] where [29] is needed.");
  EXPECT_EQ(refusal(shapes(dispatch, {{4}, {6, 8}})), "dispatch: the routing has 4 elements.");
  EXPECT_EQ(refusal(shapes(combine, {{kRouting}, {64, 8}})), "accepted");
  EXPECT_EQ(refusal(shapes(combine, {{kRouting}, {6, 8}})), "combine: an expert has 64 rows, the input 6.");
  EXPECT_EQ(refusal(shapes(expert_linear, {{kRouting}, {64, 8}}, {{9, 3}})),
            "expert_linear: the input has 8 columns, the weight [9, 3] takes 9.");
  EXPECT_EQ(refusal(shapes(expert_linear, {{kRouting}, {64, 8}, {6, 2}}, {{8, 3}}, weighted)),
            "expert_linear: there is no bias to be weighted.");
  EXPECT_EQ(refusal(shapes(expert_linear, {{kRouting}, {64, 8}, {6, 3}}, {{8, 3}, {3}}, weighted)),
            "expert_linear: the matrix of weights has shape [6, 3] where [6, 2] is needed.");
  EXPECT_EQ(refusal(shapes(expert_swiglu, {{kRouting}, {64, 7}})),
            "expert_swiglu: 7 columns are not a gate and as many others.");
  EXPECT_EQ(refusal(shapes(expert_swiglu, {{kRouting}, {6, 2}}, {}, weighted)),
            "expert_swiglu: 2 inputs are too few.");
  OpAttributes clamped{.routing = kTwoOfFour};
  clamped.swiglu_limit = -1;
  EXPECT_EQ(refusal(shapes(expert_swiglu, {{kRouting}, {64, 8}}, {}, clamped)),
            "expert_swiglu: the limit -1 and alpha 0 are not both numbers of 0 or more.");
  EXPECT_EQ(refusal(shapes(add_sum, {{6, 8}, {6, 9}})),
            "add_sum: an input has shape [6, 9] where [6, 8] is needed.");
}

OpAttributes divided_over(uint32_t ranks) {
  OpAttributes attributes = with([&](Routing& r) { r.over = {"experts", ranks}; });
  attributes.among = attributes.routing.over;
  return attributes;
}

// Two ranks have two experts each.
TEST(ExpertOps, OpsBetweenRanksRefuseWhatDoesNotFit) {
  const OpAttributes over = divided_over(2);
  EXPECT_EQ(refusal(shapes(OpKind::all_gather, {{kRouting}}, {}, over)), "accepted");
  EXPECT_EQ(refusal(shapes(OpKind::all_gather, {{6, 2}}, {}, over)),
            "all_gather: the routing of shape [6, 2] needs 1 dimensions.");
  EXPECT_EQ(refusal(shapes(OpKind::all_to_all, {{12, 2}}, {}, over)), "accepted");
  EXPECT_EQ(refusal(shapes(OpKind::all_to_all, {{13, 2}}, {}, over)),
            "all_to_all: 13 rows are not 2 equal parts.");
  EXPECT_EQ(refusal(shapes(OpKind::all_to_allv, {{kRouting}, {2 * kRouting}, {128, 8}}, {}, over)),
            "accepted");
  EXPECT_EQ(refusal(shapes(OpKind::all_to_allv, {{kRouting}, {kRouting}, {128, 8}}, {}, over)),
            "all_to_allv: the routing of all ranks has shape [29] where [58] is needed.");
  EXPECT_EQ(refusal(shapes(OpKind::all_to_allv, {{kRouting}, {2 * kRouting}, {64, 8}}, {}, over)),
            "all_to_allv: the input has shape [64, 8] where [128, 8] is needed.");
  EXPECT_EQ(refusal(shapes(OpKind::all_gather, {{kRouting}}, {}, divided_over(3))),
            "all_gather: 4 experts cannot be divided over 3 ranks.");
  OpAttributes in_nodes = divided_over(4);
  in_nodes.among.count = 2;
  EXPECT_EQ(refusal(shapes(OpKind::all_gather, {{kRouting}}, {}, in_nodes)),
            "all_gather: 2 ranks carry it out, and 4 have experts.");
  const std::vector<Shape> rows{{kRouting}, {4 * kRouting}, {256, 8}};
  EXPECT_EQ(refusal(shapes(OpKind::all_to_allv, rows, {}, in_nodes)), "accepted");
  in_nodes.among.count = 3;
  EXPECT_EQ(refusal(shapes(OpKind::all_to_allv, rows, {}, in_nodes)),
            "all_to_allv: 4 ranks are not nodes of 3.");
  EXPECT_EQ(refusal(shapes(repeat, {{6, 2}}, {}, over)), "accepted");
  EXPECT_EQ(refusal(shapes(repeat, {{6}}, {}, over)), "repeat: the input of shape [6] needs 2 dimensions.");
}

// 6 rows choose 2 of 4 experts each, so an expert has 3 rows. Its product computes a tile of 64 rows.
TEST(ExpertOps, FlopsAndBytesAreThoseOfEquallyManyRows) {
  OpShapes s = shapes(expert_linear, {{kRouting}, {64, 8}}, {{8, 5}});
  s.outputs = {{64, 5}};
  EXPECT_EQ(expected_rows(s), 3);
  EXPECT_EQ(op_rule(expert_linear).flops(s, Pass::forward), 2 * 64 * 8 * 5);
  EXPECT_EQ(op_rule(expert_linear).flops(s, Pass::backward), 2 * 2 * 64 * 8 * 5);
  EXPECT_EQ(op_bytes(s, Pass::forward), kRouting * 4 + 3 * 8 * 2 + 3 * 5 * 2 + 8 * 5 * 2);
  // Read: routing, x, dy and the weight. Written: dx, and the gradient of the weight.
  EXPECT_EQ(op_bytes(s, Pass::backward), kRouting * 4 + 2 * 3 * 8 * 2 + 3 * 5 * 2 + 8 * 5 * 2 + 8 * 5 * 4);
}

// An op between ranks counts its output twice: it sends a part to each rank and gets a part from each.
// Routing does not count where it only says which rows travel.
TEST(ExpertOps, BytesBetweenRanksAreThoseThatTravel) {
  const OpAttributes over = divided_over(2);
  EXPECT_EQ(op_bytes(shapes(OpKind::all_gather, {{kRouting}}, {}, over), Pass::forward),
            2 * 2 * kRouting * 4);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    EXPECT_EQ(op_bytes(shapes(OpKind::all_to_all, {{12, 2}}, {}, over), pass), 2 * 12 * 2 * 4);
    EXPECT_EQ(op_bytes(shapes(OpKind::all_to_allv, {{kRouting}, {2 * kRouting}, {128, 8}}, {}, over), pass),
              2 * 2 * 3 * 8 * 2);
  }
}

TEST(ExpertOps, PredictionsMayAssumeOtherRows) {
  const auto rows = [](int64_t all, double over_mean) {  // of one expert; each row chooses 2 of 4
    OpShapes s = shapes(expert_linear, {{5 + 4 * all}, {expert_rows_most(all), 8}}, {{8, 5}});
    s.attributes.routing.rows_over_mean = over_mean;
    s.outputs = {{expert_rows_most(all), 5}};
    return std::pair(assumed_rows(s), op_rule(expert_linear).flops(s, Pass::forward) / (2 * 8 * 5));
  };
  EXPECT_EQ(rows(128, 1), std::pair(64.0, 64.0));
  EXPECT_EQ(rows(128, 1.5), std::pair(96.0, 128.0));
  EXPECT_EQ(rows(128, 2), std::pair(128.0, 128.0));
  EXPECT_EQ(rows(128, 0.25), std::pair(16.0, 64.0));
  EXPECT_EQ(rows(1, 1), std::pair(0.5, 32.0)) << "half of the experts have a row, and a tile";
}

}  // namespace
}  // namespace sluice
