// A mark is two events. Times are counted from anchors: events that are recorded before a lane's first
// instruction of each body. An anchor's time is the previous anchor's time plus the distance between the two.
// A mark's time is its anchor's time plus the mark's distance from the anchor. So the 24 bits of CUDA's float
// milliseconds suffice however long the run is. The drift of the device's clock is taken out once a body: the
// least delay with which the host saw an instruction done is taken as zero.
#include "gpu/cuda/streams.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"

namespace sluice::cuda {
namespace {

constexpr const char* kPreparing = "Preparing the GPU's streams";

double seconds_between(const Event& from, const Event& to) {
  float milliseconds = 0;
  check_step(cudaEventElapsedTime(&milliseconds, from.get(), to.get()));
  return static_cast<double>(milliseconds) * 1e-3;
}

class CudaStreams final : public Streams {
 public:
  CudaStreams(int ordinal, const LaneStreams& streams, uint64_t pinned_piece_bytes,
              std::span<const uint32_t> instructions_max)
      : ordinal_(ordinal), pinned_piece_bytes_(pinned_piece_bytes) {
    for (size_t i = 0; i < streams.size(); ++i) {
      Lane& lane = lanes_[i];
      const LaneId id = kStreamLanes[i];
      lane.stream = streams[i].get();
      lane.marks_of_ticket = id < instructions_max.size() ? instructions_max[id] : 0;
      lane.marks = std::vector<Events>(kMarkedTickets * lane.marks_of_ticket);
      check_setup(cudaEventRecord(lane.anchors[0].get(), lane.stream), kPreparing);
      check_setup(cudaEventSynchronize(lane.anchors[0].get()), kPreparing);
      lane.anchor_seconds = steady_seconds();
    }
  }

  // A run that failed may have left work in the streams, and the arenas must outlive that work. Result codes
  // need no look here: whoever enqueued or waited has seen them.
  ~CudaStreams() override {
    for (const Lane& lane : lanes_) (void)cudaStreamSynchronize(lane.stream);
  }

  bool has(LaneId lane) const override {
    const size_t i = stream_index(lane);
    return i < kStreamLanes.size() && lanes_[i].marks_of_ticket > 0;
  }
  void enter_thread() override { check_step(cudaSetDevice(ordinal_)); }

  void begin(const Mark& mark) override {
    Lane& lane = at(mark.lane);
    if (mark.number == 0)
      check_step(cudaEventRecord(lane.anchors[++lane.anchors_recorded % kAnchors].get(), lane.stream));
    check_step(cudaEventRecord(events(lane, mark).begin.get(), lane.stream));
  }
  void end(const Mark& mark) override {
    Lane& lane = at(mark.lane);
    check_step(cudaEventRecord(events(lane, mark).end.get(), lane.stream));
  }
  void wait_for(LaneId lane, const Mark& mark) override {
    check_step(cudaStreamWaitEvent(at(lane).stream, events(at(mark.lane), mark).end.get(), 0));
  }
  void synchronize(const Mark& mark) override {
    check_step(cudaEventSynchronize(events(at(mark.lane), mark).end.get()));
  }
  bool is_done(const Mark& mark) override { return events(at(mark.lane), mark).end.is_reached(); }

  Interval interval(const Mark& mark) override {
    Lane& lane = at(mark.lane);
    const Events& here = events(lane, mark);
    if (mark.number == 0) {
      const Event& before = lane.anchors[lane.anchors_seen % kAnchors];
      const Event& anchor = lane.anchors[++lane.anchors_seen % kAnchors];
      lane.anchor_seconds += seconds_between(before, anchor) + delay(lane);
      lane.least_delay = kNone;
    }
    const Event& anchor = lane.anchors[lane.anchors_seen % kAnchors];
    const double begin = lane.anchor_seconds + seconds_between(anchor, here.begin);
    const double end = lane.anchor_seconds + seconds_between(anchor, here.end);
    lane.least_delay = std::min(lane.least_delay, steady_seconds() - end);
    return {begin, end};
  }

  void enter_range(const char* name) override { (void)nvtxRangePushA(name); }  // nobody needs the depth
  void leave_range() override { (void)nvtxRangePop(); }

  void copy(LaneId lane, void* to, const void* from, uint64_t bytes) override {
    CHECK(lane == kH2dLane || lane == kD2hLane, "a copy on a lane of other work");
    const cudaMemcpyKind kind = lane == kH2dLane ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    while (bytes > 0) {  // the driver refuses a copy that lies in two pieces
      const void* const host = lane == kH2dLane ? source : target;
      const uint64_t part = bytes_in_piece(host, bytes, pinned_piece_bytes_);
      check_step(cudaMemcpyAsync(target, source, part, kind, at(lane).stream));
      target += part;
      source += part;
      bytes -= part;
    }
  }
  void copy_inside(LaneId lane, void* to, const void* from, uint64_t bytes) override {
    if (bytes > 0) check_step(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, at(lane).stream));
  }
  void zero(LaneId lane, void* to, uint64_t bytes) override {
    if (bytes > 0) check_step(cudaMemsetAsync(to, 0, bytes, at(lane).stream));
  }

 private:
  static constexpr uint64_t kAnchors = 4;  // two bodies are in flight, and the anchor before theirs is needed
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  struct Events {
    Event begin, end;
  };
  struct Lane {
    cudaStream_t stream = nullptr;
    uint32_t marks_of_ticket = 0;
    std::vector<Events> marks;  // by ticket modulo kMarkedTickets, then by number
    std::array<Event, kAnchors> anchors;
    uint64_t anchors_recorded = 0;  // by the thread that enqueues
    // By the thread that asks for intervals:
    uint64_t anchors_seen = 0;
    double anchor_seconds = 0;  // the time of the last anchor that was seen
    double least_delay = kNone;
  };

  static double delay(const Lane& lane) { return lane.least_delay == kNone ? 0 : lane.least_delay; }
  Lane& at(LaneId id) {
    CHECK(has(id), "not a stream");
    return lanes_[stream_index(id)];
  }
  static Events& events(Lane& lane, const Mark& mark) {
    CHECK(mark.number < lane.marks_of_ticket, "a mark that was not reserved");
    return lane.marks[mark.ticket % kMarkedTickets * lane.marks_of_ticket + mark.number];
  }

  int ordinal_;
  uint64_t pinned_piece_bytes_;
  std::array<Lane, kStreamLanes.size()> lanes_;  // by kStreamLanes
};

}  // namespace

std::unique_ptr<Streams> make_streams(int ordinal, const LaneStreams& streams, uint64_t pinned_piece_bytes,
                                      std::span<const uint32_t> instructions_max) {
  return std::make_unique<CudaStreams>(ordinal, streams, pinned_piece_bytes, instructions_max);
}

}  // namespace sluice::cuda
