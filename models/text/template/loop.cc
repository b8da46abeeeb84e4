#include "models/text/template/loop.h"

#include <algorithm>

namespace sluice::jinja {

Loop::Loop(Values items, std::function<bool(const Value&)> condition)
    : items_(std::move(items)), condition_(std::move(condition)), depth_(depth_with(items_)) {}

void Loop::require_no_question() const {
  if (is_asking_) throw Fault("the condition of a loop asks for items of that loop");
}

bool Loop::asks(const Value& item) {
  require_no_question();
  struct Asking {
    bool& flag;
    ~Asking() { flag = false; }
  } const asking{is_asking_};
  is_asking_ = true;
  return condition_(item);
}

const Value* Loop::peek() {
  while (!after_ && next_ < items_.size()) {
    Value item = items_[next_++];
    if (!condition_ || asks(item)) after_ = std::move(item);
  }
  return after_ ? &*after_ : nullptr;
}

bool Loop::advance() {
  if (peek() == nullptr) return false;
  before_ = std::move(current_);
  current_ = std::move(after_);
  after_.reset();
  ++index0_;
  return true;
}

void Loop::end() {
  items_.clear();
  condition_ = nullptr;
  before_.reset();
  current_.reset();
  after_.reset();
  last_changed_.reset();
  ended_ = true;
}

void Loop::require_running() const {
  if (ended_) throw refusal("'loop' of a loop that is over");
}

int64_t Loop::length() {
  require_running();
  if (condition_) {
    require_no_question();
    Values left;
    for (size_t i = next_; i < items_.size(); ++i)
      if (asks(items_[i])) left.push_back(items_[i]);
    items_ = std::move(left);
    next_ = 0;
    condition_ = nullptr;
    // From here on, index0_ + 1 items are gone, and items_ holds what is behind after_.
  }
  return index0_ + 1 + (after_ ? 1 : 0) + static_cast<int64_t>(items_.size() - next_);
}

std::optional<Value> Loop::attribute(std::string_view name) {
  require_running();
  if (name == "index") return Value{index0_ + 1};
  if (name == "index0") return Value{index0_};
  if (name == "first") return Value{index0_ == 0};
  if (name == "last") return Value{peek() == nullptr};
  if (name == "length") return Value{length()};
  if (name == "revindex") return Value{length() - index0_};
  if (name == "revindex0") return Value{length() - index0_ - 1};
  if (name == "depth") return Value{int64_t{1}};
  if (name == "depth0") return Value{int64_t{0}};
  if (name == "previtem") return before_ ? *before_ : undefined("there is no previous item");
  if (name == "nextitem") return peek() != nullptr ? *peek() : undefined("there is no next item");
  return std::nullopt;
}

Value Loop::cycle(const Values& values) const {
  require_running();
  if (values.empty()) throw Fault("loop.cycle needs an argument");
  return values[static_cast<size_t>(index0_) % values.size()];
}

bool Loop::changed(const Values& values, Budget& budget) {
  require_running();
  if (last_changed_ && std::equal(values.begin(), values.end(), last_changed_->begin(), last_changed_->end(),
                                  [&](const Value& a, const Value& b) { return equal(a, b, budget); }))
    return false;
  depth_ = std::max(depth_, depth_with(values));
  last_changed_ = values;
  return true;
}

}  // namespace sluice::jinja
