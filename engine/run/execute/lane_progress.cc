#include "engine/run/execute/lane_progress.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

LaneProgress::LaneProgress(const Program& program, const LaneOrders& orders, size_t threads,
                           std::function<void()> on_error)
    : program_(program),
      orders_(orders),
      on_error_(std::move(on_error)),
      threads_(threads + 1),
      counters_(program.machine.lanes.size()),
      enqueued_(counters_.size()),
      dropped_from_(counters_.size()) {
  for (IssuedBody& body : bodies_) body.base.resize(counters_.size());
}

void LaneProgress::make_room() {
  if (issued_ >= 2) wait(issued_ - 1);
}

void LaneProgress::await_idle_lane() {
  if (issued_ == 0) return;
  const IssuedBody& last = body(issued_);
  const auto& orders = orders_[last.body];
  std::unique_lock lock(mutex_);
  sleep_until(threads_.back(), lock, [&] {  // a lane without instructions in this body is not waited for
    for (LaneId l = 0; l < counters_.size(); ++l)
      if (!orders[l].empty() && counters_[l] >= last.base[l] + orders[l].size()) return true;
    return false;
  });
}

uint64_t LaneProgress::issue(BodyId body, const RingPositions& rings, double seconds, bool traced) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = issued_ + 1;
  // A lane without instructions in the last bodies may not have woken up yet. It would read the entry that is
  // overwritten here.
  sleep_until(threads_.back(), lock, [&] {
    return std::all_of(threads_.begin(), threads_.end(),
                       [&](const Thread& t) { return t.at > ticket || ticket - t.at < kIssuedMax; });
  });
  IssuedBody& mine = bodies_[ticket % kIssuedMax];
  mine.body = body;
  mine.rings = rings;
  mine.seconds = seconds;
  mine.traced = traced;
  if (issued_ > 0) {
    const IssuedBody& before = this->body(issued_);
    const auto& list = program_.bodies[body].predecessors;
    const auto it = std::find(list.begin(), list.end(), before.body);
    CHECK(it != list.end(), program_.bodies[before.body].name + " before " + program_.bodies[body].name);
    mine.predecessor = static_cast<size_t>(it - list.begin());
    for (LaneId l = 0; l < counters_.size(); ++l)
      mine.base[l] = before.base[l] + orders_[before.body][l].size();
  }
  issued_ = ticket;
  wake_ready(lock);
  return ticket;
}

bool LaneProgress::is_complete(uint64_t ticket) const {
  const IssuedBody& issued = body(ticket);
  for (LaneId l = 0; l < counters_.size(); ++l)
    if (counters_[l] < issued.base[l] + orders_[issued.body][l].size()) return false;
  return true;
}

void LaneProgress::wait(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  sleep_until(threads_.back(), lock, [&] { return is_complete(ticket); });
}

void LaneProgress::wait(uint64_t ticket, const Wait& until) {
  const uint64_t count = body(ticket).base[until.lane] + until.count;
  std::unique_lock lock(mutex_);
  sleep_until(threads_.back(), lock, [&] { return counters_[until.lane] >= count; });
}

std::exception_ptr LaneProgress::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void LaneProgress::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  failed_ = true;
  wake_ready(lock);
}

// Two bodies are in flight at most, so the body before these two is complete.
Kept LaneProgress::drop() {
  const std::lock_guard lock(mutex_);
  uint64_t complete = issued_;
  while (complete > 0 && complete + 2 > issued_ && !is_complete(complete)) --complete;
  kept_.ticket = std::max(begun_, complete);
  kept_.whole = kept_.ticket == complete || droppable_->needed[body(kept_.ticket).body] ==
                                                program_.bodies[body(kept_.ticket).body].instructions.size();
  dropped_ = issued_;
  return kept_;
}

void LaneProgress::drop_next() {
  const std::lock_guard lock(mutex_);
  dropped_ = issued_ + 1;
}

void LaneProgress::note_dropped(LaneId lane, uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (dropped_from_[lane] == 0) dropped_from_[lane] = number;
}

bool LaneProgress::was_dropped(LaneId lane, uint64_t number, uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return dropped_from_[lane] > 0 && number >= dropped_from_[lane] && ticket <= dropped_;
}

// An instruction that depends on a dropped one begins after the drop, so it is dropped, too.
bool LaneProgress::begins(uint64_t ticket, uint32_t index) {
  if (failed_ || !droppable_) return !failed_;
  const std::lock_guard lock(mutex_);
  const BodyId id = body(ticket).body;
  if (ticket <= dropped_ && ticket >= kept_.ticket)
    if (ticket > kept_.ticket || (!kept_.whole && index >= droppable_->needed[id])) return false;
  if (droppable_->changes[id][index]) begun_ = std::max(begun_, ticket);
  return true;
}

bool LaneProgress::await_body(size_t thread, uint64_t ticket) {
  std::unique_lock lock(mutex_);
  sleep_until(threads_[thread], lock, [&] { return stopping_ || issued_ >= ticket; });
  return issued_ >= ticket;
}

bool LaneProgress::is_issued(uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return issued_ >= ticket;
}

void LaneProgress::enter(size_t thread, uint64_t ticket) {
  std::unique_lock lock(mutex_);
  threads_[thread].at = ticket;
  wake_ready(lock);
}

void LaneProgress::await(size_t thread, const IssuedBody& issued, const Instruction& in,
                         TraceRecord& record) {
  std::unique_lock lock(mutex_);
  sleep_until(threads_[thread], lock, [&] { return ready(issued, in, record); });
}

bool LaneProgress::holds(const IssuedBody& issued, const Instruction& in, TraceRecord& record) const {
  const std::lock_guard lock(mutex_);
  return ready(issued, in, record);
}

// With the mutex held.
bool LaneProgress::ready(const IssuedBody& issued, const Instruction& in, TraceRecord& record) const {
  bool all = true;
  for_each_wait(issued, in, [&](const Wait& w, bool before) {
    if (!all || counters_[w.lane] >= target(issued, w, before)) return;
    record.blocked_on = w.lane, record.blocked_count = w.count;
    all = false;
  });
  return all;
}

uint64_t LaneProgress::target(const IssuedBody& issued, const Wait& w, bool before) const {
  if (!before) return issued.base[w.lane] + w.count;
  const BodyId last = program_.bodies[issued.body].predecessors[issued.predecessor];
  return issued.base[w.lane] - orders_[last][w.lane].size() + w.count;
}

void LaneProgress::raise(uint64_t& counter) {
  std::unique_lock lock(mutex_);
  ++counter;
  wake_ready(lock);
}

void LaneProgress::await_counter(size_t thread, const uint64_t& counter, uint64_t count) {
  std::unique_lock lock(mutex_);
  sleep_until(threads_[thread], lock, [&] { return counter >= count; });
}

void LaneProgress::wake_ready(std::unique_lock<std::mutex>& lock) {
  for (Thread& thread : threads_) {
    if (thread.holds == nullptr || !thread.holds(thread.condition)) continue;
    thread.holds = nullptr;
    lock.unlock();
    thread.woken.notify_one();
    lock.lock();
  }
}

}  // namespace sluice
