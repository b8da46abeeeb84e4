// The ops of routers: logits, the choice of experts, and their losses.
#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/graph/draws.h"
#include "engine/graph/routing.h"
#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

using Scores = Routing::Scores;

bool is_better(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Among the indices i with allowed(i), returns the `count` that have the largest keys, the largest first.
template <typename Allowed>
std::vector<int64_t> largest(const std::vector<double>& keys, int64_t count, Allowed allowed) {
  std::vector<int64_t> best;
  while (static_cast<int64_t>(best.size()) < count) {
    int64_t next = -1;
    for (int64_t i = 0; i < static_cast<int64_t>(keys.size()); ++i) {
      if (!allowed(i) || std::ranges::find(best, i) != best.end()) continue;
      if (next < 0 || is_better(keys[static_cast<size_t>(i)], keys[static_cast<size_t>(next)])) next = i;
    }
    best.push_back(next);
  }
  return best;
}

struct LogSum {
  double maximum, sum;  // of e^(logit - maximum)
  double value() const { return maximum + std::log(sum); }
  double probability(double logit) const { return std::exp(logit - maximum) / sum; }
};
template <typename Logit>
LogSum log_sum(int64_t count, Logit logit) {
  LogSum l{logit(0), 0};
  for (int64_t i = 1; i < count; ++i)
    if (is_better(logit(i), l.maximum)) l.maximum = logit(i);
  for (int64_t i = 0; i < count; ++i) l.sum += std::exp(logit(i) - l.maximum);
  return l;
}

// One row of logits.
class Row {
 public:
  Row(const OpCall& call, int64_t row)
      : routing_(call.shapes->attributes.routing),
        logits_(static_cast<const float*>(call.inputs[0].data) + row * routing_.experts) {}

  double logit(int64_t e) const { return logits_[e]; }
  LogSum all() const {
    return log_sum(routing_.experts, [&](int64_t e) { return logit(e); });
  }

  // The chosen experts, best first. correct(e) is added to the score of expert e, for the choice only.
  template <typename Correct>
  std::vector<int64_t> choice(Correct correct) const {
    std::vector<double> keys;
    for (int64_t e = 0; e < routing_.experts; ++e)
      keys.push_back((routing_.scores == Scores::sigmoid ? sigmoid(logit(e)) : logit(e)) + correct(e));
    if (routing_.groups == 0) return largest(keys, routing_.chosen, [](int64_t) { return true; });
    const int64_t of_group = routing_.experts / routing_.groups;
    std::vector<double> group_keys;
    for (int64_t g = 0; g < routing_.groups; ++g) {
      double sum = 0;
      for (const int64_t e :
           largest(keys, routing_.group_scores, [&](int64_t i) { return i / of_group == g; }))
        sum += keys[static_cast<size_t>(e)];
      group_keys.push_back(sum);
    }
    const auto groups = largest(group_keys, routing_.best_groups, [](int64_t) { return true; });
    return largest(keys, routing_.chosen,
                   [&](int64_t e) { return std::ranges::find(groups, e / of_group) != groups.end(); });
  }

  // The weights of the chosen experts before normalization and scaling.
  std::vector<double> parts(const std::vector<int64_t>& chosen) const {
    const auto of_chosen = [&](int64_t j) { return logit(chosen[static_cast<size_t>(j)]); };
    const LogSum sum = routing_.scores == Scores::softmax ? all() : log_sum(routing_.chosen, of_chosen);
    std::vector<double> parts;
    for (const int64_t e : chosen)
      parts.push_back(routing_.scores == Scores::sigmoid ? sigmoid(logit(e)) : sum.probability(logit(e)));
    return parts;
  }
  // What the normalization divides the parts by.
  double divisor(const std::vector<double>& parts) const {
    if (!routing_.normalized) return 1;
    double sum = routing_.scores == Scores::sigmoid ? 1e-20 : 0;
    for (const double part : parts) sum += part;
    return sum;
  }

  // d logit(e) for all e. The weights are w = factor * a / S, with parts a and divisor S; dw are their
  // gradients.
  std::vector<double> gradient(const std::vector<int64_t>& chosen, const float* dw) const {
    const std::vector<double> a = parts(chosen);
    const double divisor = this->divisor(a);
    double mean = 0;  // the weighted average of the gradients
    if (routing_.normalized)
      for (size_t j = 0; j < a.size(); ++j) mean += routing_.factor() * dw[j] * a[j] / divisor;
    std::vector<double> da, d_logits(static_cast<size_t>(routing_.experts), 0.0);
    double product = 0;
    for (size_t j = 0; j < a.size(); ++j) {
      da.push_back((routing_.factor() * dw[j] - mean) / divisor);
      product += da[j] * a[j];
    }
    if (routing_.scores == Scores::softmax) {
      const LogSum sum = all();
      for (int64_t e = 0; e < routing_.experts; ++e)
        d_logits[static_cast<size_t>(e)] = -sum.probability(logit(e)) * product;
    }
    for (size_t j = 0; j < a.size(); ++j) {
      double& d = d_logits[static_cast<size_t>(chosen[j])];
      if (routing_.scores == Scores::softmax)
        d += a[j] * da[j];
      else if (routing_.scores == Scores::softmax_chosen)
        d = a[j] * (da[j] - product);
      else
        d = da[j] * a[j] * (1 - a[j]);
    }
    return d_logits;
  }

 private:
  const Routing& routing_;
  const float* logits_;
};

}  // namespace

void router_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> x(call.inputs[0]), weight(call.parameters[0]), bias(view_of(call.parameters, 1));
    const Values<float> logits(call.outputs[0]);
    const int64_t columns = call.shapes->inputs[0][1], experts = call.shapes->parameters[0][0];
    for (int64_t r = 0; r < call.shapes->inputs[0][0]; ++r)
      for (int64_t e = 0; e < experts; ++e) {
        double sum = bias ? bias[e] : 0;
        for (int64_t c = 0; c < columns; ++c) sum += x[r * columns + c] * weight[e * columns + c];
        logits.put(r * experts + e, sum);
      }
  });
}

void router_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> x(call.inputs[0]), weight(call.parameters[0]), dx(call.input_gradients[0]);
    const Values<float> d_logits(call.output_gradients[0]), d_weight = parameter_gradient(call, 0);
    const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
    const int64_t experts = call.shapes->parameters[0][0];
    for (int64_t r = 0; dx && r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (int64_t e = 0; e < experts; ++e) sum += d_logits[r * experts + e] * weight[e * columns + c];
        dx.put(r * columns + c, sum);
      }
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t c = 0; d_weight && c < columns; ++c) {
        double sum = 0;
        for (int64_t r = 0; r < rows; ++r) sum += d_logits[r * experts + e] * x[r * columns + c];
        d_weight.put(e * columns + c, sum);
      }
      if (call.shapes->parameters.size() < 2) continue;
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += d_logits[r * experts + e];
      parameter_gradient(call, 1).put(e, sum);
    }
  });
}

namespace {

// For each choice, whether it is tried. A second choice is not tried if its random number is too large for
// its weight. Returns an empty list if all choices are tried. Needs the weights in output 0.
std::vector<bool> tried_choices(const OpCall& call) {
  if (!call.shapes->attributes.routing.random_second) return {};
  const Draws draws = draws_of(static_cast<const int32_t*>(call.inputs[1].data));
  if (draws.step == 0) return {};
  const auto* weights = static_cast<const float*>(call.outputs[0].data);
  std::vector<bool> tried;
  for (int64_t r = 0; r < call.shapes->inputs[0][0]; ++r) {
    const bool second = draw_second(draws, call.layer, static_cast<uint64_t>(r)) < 2 * weights[2 * r + 1];
    tried.insert(tried.end(), {true, second});
  }
  return tried;
}

}  // namespace

void route_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> correction(view_of(call.parameters, 0));
    const Values<float> weights(call.outputs[0]);
    const Routing& routing = call.shapes->attributes.routing;
    const int64_t rows = call.shapes->inputs[0][0];
    std::vector<int32_t> experts;
    for (int64_t r = 0; r < rows; ++r) {
      const Row row(call, r);
      const auto chosen = row.choice([&](int64_t e) { return correction ? correction[e] : 0; });
      std::vector<double> parts = row.parts(chosen);
      for (size_t j = 0; correction && j < chosen.size(); ++j)
        parts[j] += 0 * correction[chosen[j]];  // makes NaN of a NaN correction
      for (size_t j = 0; j < chosen.size(); ++j) {
        weights.put(r * routing.chosen + static_cast<int64_t>(j),
                    routing.factor() * parts[j] / row.divisor(parts));
        experts.push_back(static_cast<int32_t>(chosen[j]));
      }
    }
    const std::vector<bool> taken =
        routing.drops() ? taken_choices(routing, experts, tried_choices(call)) : std::vector<bool>();
    std::ranges::copy(make_routing({rows, routing.experts, routing.chosen}, experts, taken),
                      static_cast<int32_t*>(call.outputs[1].data));
  });
}

void route_backward(const OpCall& call) {
  const Routing& routing = call.shapes->attributes.routing;
  const Values<float> d_logits(call.input_gradients[0]);
  const int64_t rows = call.shapes->inputs[0][0];
  const auto* experts = static_cast<const int32_t*>(call.outputs[1].data) +
                        RoutingLayout{rows, routing.experts, routing.chosen}.experts_of();
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<int64_t> chosen(experts + r * routing.chosen, experts + (r + 1) * routing.chosen);
    const std::vector<double> gradient = Row(call, r).gradient(
        chosen, static_cast<const float*>(call.output_gradients[0].data) + r * routing.chosen);
    for (int64_t e = 0; e < routing.experts; ++e)
      d_logits.put(r * routing.experts + e, gradient[static_cast<size_t>(e)]);
  }
}

namespace {

bool is_padding(const OpCall& call, int64_t row) {
  return call.inputs.size() == 3 && static_cast<const int32_t*>(call.inputs[2].data)[row] == kPaddingLabel;
}

}  // namespace

void router_statistics_forward(const OpCall& call) {
  const Routing& routing = call.shapes->attributes.routing;
  const int64_t experts = routing.experts, rows = call.shapes->inputs[0][0];
  std::vector<double> sums(static_cast<size_t>(router_statistics_count(experts)), 0.0);
  const auto* routed = static_cast<const int32_t*>(call.inputs[1].data);
  const auto* chosen = routed + RoutingLayout{rows, experts, routing.chosen}.experts_of();
  sums.back() = routed[experts];
  for (int64_t r = 0; r < rows; ++r) {
    if (is_padding(call, r)) continue;
    const Row row(call, r);
    const LogSum sum = row.all();
    for (int64_t e = 0; e < experts; ++e) sums[static_cast<size_t>(e)] += sum.probability(row.logit(e));
    sums[static_cast<size_t>(experts)] += sum.value() * sum.value();
    for (int64_t j = 0; j < routing.counted_choices(); ++j)
      ++sums[static_cast<size_t>(experts + 1 + chosen[r * routing.chosen + j])];
  }
  const Values<float> statistics({call.outputs[0].data, call.outputs[0].data});
  for (size_t i = 0; i < sums.size(); ++i) statistics.put(static_cast<int64_t>(i), sums[i]);
}

// With g the gradient of the softmax's sums: d logit(e) = p(e) (g(e) - sum of g p + 2 lse dz).
void router_statistics_backward(const OpCall& call) {
  const int64_t experts = call.shapes->attributes.routing.experts;
  const Values<float> d_sums(call.output_gradients[0]), d_logits(call.input_gradients[0]);
  for (int64_t r = 0; r < call.shapes->inputs[0][0]; ++r) {
    const Row row(call, r);
    const LogSum sum = row.all();
    double product = 0;
    for (int64_t e = 0; e < experts; ++e) product += d_sums[e] * sum.probability(row.logit(e));
    for (int64_t e = 0; e < experts; ++e) {
      const double d =
          sum.probability(row.logit(e)) * (d_sums[e] - product + 2 * sum.value() * d_sums[experts]);
      d_logits.put(r * experts + e, is_padding(call, r) ? 0 : d);
    }
  }
}

namespace {

// The operands and factors of router_loss.
struct RouterLoss {
  explicit RouterLoss(const OpCall& call)
      : routing(call.shapes->attributes.routing), statistics(call.inputs[0]) {
    const auto* labels = static_cast<const int32_t*>(call.inputs[1].data);
    const int64_t count = call.shapes->inputs[1][0];
    valid = static_cast<double>(count - std::count_if(labels, labels + count, is_ignored));
    const int64_t counted = count - std::count(labels, labels + count, kPaddingLabel);
    rows = static_cast<double>(std::max<int64_t>(counted, 1) * routing.layers);
  }
  double choices(int64_t e) const { return statistics[routing.experts + 1 + e]; }
  double balance_factor() const {
    return valid * routing.balance_loss * static_cast<double>(routing.experts) / rows / rows;
  }
  double z_factor() const { return valid * routing.z_loss / rows; }
  double loss() const {
    double sum = 0;
    for (int64_t e = 0; e < routing.experts; ++e) sum += choices(e) * statistics[e];
    return balance_factor() * sum + z_factor() * statistics[routing.experts];
  }
  void add_to(const TensorView& view) const {
    auto* losses = static_cast<double*>(view.data);
    const double mine = loss();
    losses[0] += mine;
    losses[2] += mine;
  }

  const Routing& routing;
  Values<const float> statistics;
  double valid = 0, rows = 0;
};

}  // namespace

void router_loss_forward(const OpCall& call) { RouterLoss(call).add_to(call.outputs[0]); }

void router_loss_backward(const OpCall& call) {
  const RouterLoss l(call);
  l.add_to(call.outputs[0]);
  const double seed = static_cast<float>(*call.loss_scale / *call.valid_tokens);
  const int64_t experts = l.routing.experts;
  const Values<float> gradient(call.input_gradients[0]);
  for (int64_t e = 0; e < experts; ++e) {
    gradient.put(e, seed * l.balance_factor() * l.choices(e));
    gradient.put(experts + 1 + e, 0);
  }
  gradient.put(experts, seed * l.z_factor());
  gradient.put(2 * experts + 1, 0);
}

namespace {

// log(1 + e^x), without overflow.
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

// Calls body(i, normal number) for the elements of add_noise's logits.
template <typename Body>
void for_each_noise(const OpCall& call, Body body) {
  const Draws draws = draws_of(static_cast<const int32_t*>(call.inputs[2].data));
  const int64_t experts = call.shapes->inputs[0][1];
  for (int64_t r = 0; r < call.shapes->inputs[0][0]; ++r)
    for (int64_t e = 0; e < experts; ++e) {
      const auto block = static_cast<uint32_t>(e / 4);
      const double normal = draws.step == 0 ? 0
                                            : draw_noise(draws, call.layer, static_cast<uint64_t>(r),
                                                         block)[static_cast<size_t>(e % 4)];
      body(r * experts + e, normal);
    }
}

}  // namespace

void add_noise_forward(const OpCall& call) {
  const Values<float> logits(call.inputs[0]), deviations(call.inputs[1]), y(call.outputs[0]);
  for_each_noise(call,
                 [&](int64_t i, double normal) { y.put(i, logits[i] + normal * softplus(deviations[i])); });
}

void add_noise_backward(const OpCall& call) {
  const Values<float> deviations(call.inputs[1]), dy(call.output_gradients[0]);
  const Values<float> d_logits(call.input_gradients[0]), d_deviations(call.input_gradients[1]);
  for_each_noise(call, [&](int64_t i, double normal) {
    d_logits.put(i, dy[i]);
    d_deviations.put(i, dy[i] * normal * sigmoid(deviations[i]));
  });
}

}  // namespace sluice::reference
