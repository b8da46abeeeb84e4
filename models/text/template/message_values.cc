#include "models/text/template/message_values.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice::jinja {

Value MessageValues::first(size_t count, uint32_t& source, Budget& budget) {
  const size_t known = std::min(count, values_.size());
  Cost cost = known == 0 ? Cost{} : costs_[known - 1];
  budget.step(cost.steps);
  budget.make(cost.bytes);
  while (values_.size() < count) {
    const Budget before = budget;
    values_.push_back(value_of_json(list_[values_.size()], false, cost.next_source, budget));
    cost.steps += before.steps_left() - budget.steps_left();
    cost.bytes += before.bytes_left() - budget.bytes_left();
    costs_.push_back(cost);
  }
  source = cost.next_source;
  return sequence_value(SequenceKind::list,
                        Values(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(count)),
                        budget);
}

}  // namespace sluice::jinja
