#include "models/text/samples/samples.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

size_t Sample::trained_tokens() const {
  return trained.empty() ? 0 : static_cast<size_t>(std::count(trained.begin() + 1, trained.end(), true));
}

void Samples::add(Sample sample) {
  const auto [ids, own_ids] =
      std::mismatch(last_.ids.begin(), last_.ids.end(), sample.ids.begin(), sample.ids.end());
  auto shared = own_ids - sample.ids.begin();
  const auto marks = sample.trained.begin();
  shared = std::mismatch(marks, marks + shared, last_.trained.begin()).first - marks;
  Difference difference{static_cast<size_t>(shared), sample};
  std::vector<uint32_t>(sample.ids.begin() + shared, sample.ids.end()).swap(difference.rest.ids);
  std::vector<bool>(marks + shared, sample.trained.end()).swap(difference.rest.trained);
  differences_.push_back(std::move(difference));
  last_ = std::move(sample);
}

Sample Samples::operator[](size_t number) const {
  CHECK(number < size(), "there is no such sample");
  Iterator at = begin();
  for (size_t i = 0; i < number; ++i) ++at;
  return *at;
}

Samples::Iterator& Samples::Iterator::operator++() {
  ++next_;
  make();
  return *this;
}

void Samples::Iterator::make() {
  if (next_ == samples_->size()) return;
  const auto& [shared, rest] = samples_->differences_[next_];
  std::vector<uint32_t> ids = std::move(sample_.ids);
  ids.resize(shared);
  ids.insert(ids.end(), rest.ids.begin(), rest.ids.end());
  std::vector<bool> trained = std::move(sample_.trained);
  trained.resize(shared);
  trained.insert(trained.end(), rest.trained.begin(), rest.trained.end());
  sample_ = {std::move(ids), std::move(trained), rest.is_text, rest.unknown_characters,
             rest.spelled_controls};
}

}  // namespace sluice
