// The `loop` of a for statement.
//
// Items are taken one by one. The statement's condition is evaluated for an item as late as in jinja2, when
// the item is next or when the template looks ahead (last, nextitem, length). Caller: the interpreter makes
// and ends it; templates may hold it longer, but then it is empty.
#pragma once

#include <functional>
#include <optional>

#include "models/text/template/value.h"

namespace sluice::jinja {

class Loop {
 public:
  // `condition` says whether an item takes part; empty: each does.
  Loop(Values items, std::function<bool(const Value&)> condition);

  bool advance();  // to the next item; false if there is none
  const Value& current() const { return *current_; }
  void end();  // the statement is over: drops the items and the condition

  int64_t length();
  int depth() const { return depth_; }
  // loop.index, loop.first, ...; empty if there is no such attribute.
  std::optional<Value> attribute(std::string_view name);
  Value cycle(const Values& values) const;
  bool changed(const Values& values, Budget& budget);

 private:
  const Value* peek();           // the item behind the current one, or null
  bool asks(const Value& item);  // whether the condition holds
  // Throws Fault if the condition looks ahead in its own loop: in Python, a generator does not go on while it
  // runs.
  void require_no_question() const;
  void require_running() const;

  Values items_;
  std::function<bool(const Value&)> condition_;
  size_t next_ = 0;  // index in items_ of the item behind after_
  std::optional<Value> before_, current_, after_;
  int64_t index0_ = -1;
  std::optional<Values> last_changed_;
  int depth_;
  bool ended_ = false;
  bool is_asking_ = false;  // the condition is being evaluated
};

}  // namespace sluice::jinja
