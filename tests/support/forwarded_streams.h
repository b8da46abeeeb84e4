// Streams that forward every call to other streams, unless a test overrides the call.
#pragma once

#include "gpu/accelerator.h"

namespace sluice {

class ForwardedStreams : public Streams {
 public:
  explicit ForwardedStreams(Streams& streams) : streams_(streams) {}  // which outlive this object
  bool has(LaneId lane) const override { return streams_.has(lane); }
  void enter_thread() override { streams_.enter_thread(); }
  void begin(const Mark& mark) override { streams_.begin(mark); }
  void end(const Mark& mark) override { streams_.end(mark); }
  void wait_for(LaneId lane, const Mark& mark) override { streams_.wait_for(lane, mark); }
  void synchronize(const Mark& mark) override { streams_.synchronize(mark); }
  bool is_done(const Mark& mark) override { return streams_.is_done(mark); }
  Interval interval(const Mark& mark) override { return streams_.interval(mark); }
  void enter_range(const char* name) override { streams_.enter_range(name); }
  void leave_range() override { streams_.leave_range(); }
  void copy(LaneId lane, void* to, const void* from, uint64_t bytes) override {
    streams_.copy(lane, to, from, bytes);
  }
  void copy_inside(LaneId lane, void* to, const void* from, uint64_t bytes) override {
    streams_.copy_inside(lane, to, from, bytes);
  }
  void zero(LaneId lane, void* to, uint64_t bytes) override { streams_.zero(lane, to, bytes); }

 private:
  Streams& streams_;
};

}  // namespace sluice
