#include "tools/profile/trace.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/page/html.h"

namespace sluice {

namespace {

constexpr int kProcess = 1;

class TraceText {
 public:
  explicit TraceText(const ProfiledRun& run) : run_(run), program_(run.plan.program) {}

  std::string text() {
    out_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    add_names();
    add_instructions();
    add_counters();
    out_ += "]}\n";
    return std::move(out_);
  }

 private:
  static std::string quoted(const std::string& text) { return safe_json(nlohmann::ordered_json(text)); }
  // Whole nanoseconds, as Perfetto counts. A duration is the difference of two of these, so that events that
  // do not overlap here do not overlap in Perfetto, which drops events that overlap on a thread.
  static int64_t nano(double seconds) { return std::llround(seconds * 1e9); }
  static std::string micro(int64_t nanoseconds) {
    return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
  }
  static size_t thread(LaneId lane) { return lane + size_t{1}; }  // Perfetto takes thread 0 for an idle core

  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    if (!out_.ends_with("[\n")) out_ += ",\n";
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  void add_names() {
    add(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", kProcess,
        quoted("sluice " + run_.options.model.model));
    for (LaneId l = 0; l < program_.machine.lanes.size(); ++l) {
      add(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", kProcess, thread(l),
          quoted(program_.machine.lanes[l].name));
      add(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", kProcess,
          thread(l), l);
    }
  }

  // The details that a click on an event shows.
  std::string arguments(size_t position, uint32_t i, const std::optional<Obstacle>& obstacle) const {
    const Timeline& t = run_.profile.measured;
    const Body& body = program_.bodies[t.sequence[position]];
    const Instruction& in = body.instructions[i];
    const double seconds = t.times[position][i].end - t.times[position][i].begin;
    std::string text =
        fmt::format(R"("step":{},"body":{})", run_.recorder.bodies()[position].step, quoted(body.name));
    if (in.task == kNoTask) {
      const uint64_t bytes = operand_bytes(program_.buffers[in.operands[0].buffer], in.operands[0]);
      text += fmt::format(R"(,"bytes":{})", bytes);
      if (seconds > 0)
        text += fmt::format(R"(,"bytes_per_second":{:.0f})", static_cast<double>(bytes) / seconds);
    } else if (const Task& task = body.tasks[in.task]; task.flops > 0) {
      text += fmt::format(R"(,"flops":{:.0f})", task.flops);
    }
    if (!obstacle) return text;
    const Body& other = program_.bodies[t.sequence[obstacle->position]];
    return text +
           fmt::format(R"(,"waited_for":{},"waited_us":{:.1f})",
                       quoted(instruction_name(program_, other, other.instructions[obstacle->instruction])),
                       obstacle->seconds * 1e6);
  }

  void add_instructions() {
    const Timeline& t = run_.profile.measured;
    const auto obstacles = obstacles_of(t.history(program_));
    uint64_t id = 0;
    for (size_t p = 0; p < t.sequence.size(); ++p) {
      const Body& body = program_.bodies[t.sequence[p]];
      for (uint32_t i = 0; i < body.instructions.size(); ++i) {
        const InstructionTime& time = t.times[p][i];
        if (!std::isfinite(time.begin)) continue;
        const Instruction& in = body.instructions[i];
        const std::string name = quoted(instruction_name(program_, body, in)),
                          category = quoted(work_name(program_, work_of(program_, body, in))),
                          args = arguments(p, i, obstacles[p][i]);
        const int64_t begin = nano(time.begin), end = nano(time.end);
        if (!program_.machine.lanes[in.lane].overlapping)
          add(R"({{"ph":"X","pid":{},"tid":{},"name":{},"cat":{},"ts":{},"dur":{},"args":{{{}}}}})", kProcess,
              thread(in.lane), name, category, micro(begin), micro(end - begin), args);
        else
          add_asynchronous(in.lane, ++id, name, begin, end, args);
      }
    }
  }

  // Perfetto makes a track for every name of outermost asynchronous events. So the outermost event has the
  // name of its lane, and every lane has one track. The instruction lies within that event. Ids belong to the
  // process, else the track would lie outside of it.
  void add_asynchronous(LaneId l, uint64_t id, const std::string& name, int64_t begin, int64_t end,
                        const std::string& args) {
    const std::string lane = quoted(program_.machine.lanes[l].name);
    const auto mark = [&](char phase, const std::string& what, int64_t at, const std::string& more) {
      add(R"({{"ph":"{}","pid":{},"tid":{},"id2":{{"local":"{:#x}"}},"name":{},"cat":{},"ts":{}{}}})", phase,
          kProcess, thread(l), id, what, lane, micro(at), more);
    };
    mark('b', lane, begin, "");
    mark('b', name, begin, fmt::format(R"(,"args":{{{}}})", args));
    mark('e', name, end, "");
    mark('e', lane, end, "");
  }

  void add_counters() {
    for (size_t t = 0; t < run_.profile.occupancy.size(); ++t) {
      const std::string name = quoted("bytes in " + program_.machine.tiers[t].name);
      for (const OccupancyPoint& point : run_.profile.occupancy[t]) {
        std::string values;
        for (size_t c = 0; c < kClassCount; ++c)
          values += fmt::format("{}\"{}\":{}", c == 0 ? "" : ",",
                                buffer_class_name(static_cast<BufferClass>(c)), point.bytes[c]);
        add(R"({{"ph":"C","pid":{},"name":{},"ts":{},"args":{{{}}}}})", kProcess, name,
            micro(nano(point.seconds)), values);
      }
    }
  }

  const ProfiledRun& run_;
  const Program& program_;
  std::string out_;
};

}  // namespace

std::string profile_trace(const ProfiledRun& run) { return TraceText(run).text(); }

}  // namespace sluice
