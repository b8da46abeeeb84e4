// Prints programs; text_words.h has the grammar, text_parse.cc the other direction.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/program/program.h"
#include "engine/program/roles.h"
#include "engine/program/text_words.h"

namespace sluice {

const char* task_kind_name(TaskKind kind) {
  constexpr const char* kNames[kTaskKinds] = {
      "forward",  "backward",  "round",  "norm",  "set_scalars", "optimize", "visit",
      "repair",   "set_guess", "load",   "save",  "gather",      "exchange", "sum",
      "compress", "project",   "expand", "clone", "clear",       "travel",   "travel_back"};
  const auto index = static_cast<size_t>(kind);
  return index < kTaskKinds ? kNames[index] : "unknown";
}

const char* buffer_class_name(BufferClass c) {
  constexpr const char* kNames[kBufferClasses] = {"weights",     "gradients", "state",  "caches",
                                                  "activations", "workspace", "scalars"};
  const auto index = static_cast<size_t>(c);
  return index < kBufferClasses ? kNames[index] : "unknown";
}

std::string state_word(BodyState state) {
  using Update = BodyState::Update;
  if (!state.loaded) return "empty";
  std::string word = state.shared ? "shared_" : "";
  if (state.update != Update::committed)
    word += state.update == Update::pending ? "pending" : "guessed";
  else if (!state.between_waves)
    word += "clean";
  if (!state.between_waves) return word;
  return word + (state.update != Update::committed ? "_partial" : "partial");
}

std::string instruction_name(const Program& program, const Body& body, const Instruction& in) {
  if (in.task != kNoTask) {
    const Task& task = body.tasks[in.task];
    return fmt::format("{} {}/{}", task_kind_name(task.kind), task.subject, task.slice);
  }
  const Operand& source = in.operands[0];
  return fmt::format("{} {} {}-{}", program.machine.lanes[in.lane].name, program.buffers[source.buffer].name,
                     source.first, source.last);
}

namespace {

std::string encode(std::string_view name) {
  if (name.empty()) return "%";
  std::string out;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-';
    if (plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// How rows of one table are referred to: by name where that is unique, else by #INDEX.
class References {
 public:
  template <typename Rows, typename NameOf>
  References(const Rows& rows, const NameOf& name_of) {
    std::unordered_map<std::string, int> count;
    for (const auto& row : rows) ++count[name_of(row)];
    for (const auto& row : rows)
      words_.push_back(count[name_of(row)] == 1 ? encode(name_of(row)) : fmt::format("#{}", words_.size()));
  }
  const std::string& operator[](size_t index) const {
    CHECK(index < words_.size(), "a program names a row that does not exist");
    return words_[index];
  }

 private:
  std::vector<std::string> words_;
};

class Printer {
 public:
  explicit Printer(const Program& program)
      : program_(program),
        tiers_(program.machine.tiers, [](const Tier& t) { return t.name; }),
        lanes_(program.machine.lanes, [](const Lane& l) { return l.name; }),
        processes_(program.processes, [](const ProcessGroup& g) { return g.name; }),
        rings_(program.rings, [](const Ring& r) { return r.name; }),
        buffers_(program.buffers, [](const Buffer& b) { return b.name; }),
        bodies_(program.bodies, [](const Body& b) { return b.name; }) {}

  std::string run() {
    print("{}\n", kTextHeader);
    print_machine();
    print_processes();
    for (const SegmentPass& p : program_.passes) print_pass(p);
    for (const Ring& r : program_.rings) print_ring(r);
    for (const Buffer& b : program_.buffers) print_buffer(b);
    print("arena");
    print_numbers(program_.arena_bytes);
    print("\n");
    for (const Body& b : program_.bodies) print_body(b);
    for (size_t b = 0; b < program_.bodies.size(); ++b) print_lists(program_.bodies[b], bodies_[b]);
    return fmt::to_string(out_);
  }

 private:
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  template <typename Numbers>
  void print_numbers(const Numbers& numbers) {
    for (const uint64_t n : numbers) print(" {}", n);
  }

  void print_machine() {
    for (const Tier& t : program_.machine.tiers)
      print("tier {} capacity {} alignment {}{}\n", encode(t.name), t.capacity, t.alignment,
            t.file ? " file" : "");
    for (const Lane& l : program_.machine.lanes)
      print("lane {}{}\n", encode(l.name), l.overlapping ? " overlapping" : "");
    for (const Link& l : program_.machine.links) {
      print("link {} {} {} alignment {}\n", tiers_[l.from], tiers_[l.to], lanes_[l.lane], l.alignment);
    }
    for (const Unit& u : program_.machine.units)
      print("unit {} {} {}\n", task_kind_name(u.kind), lanes_[u.lane], tiers_[u.tier]);
  }

  void print_processes() {
    for (const ProcessGroup& g : program_.processes)
      print("processes {} count {} stride {}\n", encode(g.name), g.count, g.stride);
  }

  void print_pass(const SegmentPass& p) {
    print("pass");
    for (const OpWork& w : p.ops) print(" {} flops {} bytes {}", op_rule(w.kind).name, w.flops, w.bytes);
    print("\n");
  }

  void print_ring(const Ring& r) {
    print("ring {}", encode(r.name));
    if (r.slots != Ring{}.slots) print(" slots {}", r.slots);
    print("\n");
  }

  void print_buffer(const Buffer& b) {
    CHECK(b.cuts.size() > 1 && b.cuts.front() == 0, "buffer " + printable(b.name) + " has no pieces");
    print("buffer {} {}{} home {}", encode(b.name), buffer_class_name(b.kind),
          b.permanent ? " permanent" : "", tiers_[b.home]);
    if (b.permanent || b.home_offset != 0) print("+{}", b.home_offset);
    if (b.ring != kNoRing) print(" ring {}", rings_[b.ring]);
    if (b.slot_stride != 0) print(" stride {}", b.slot_stride);
    for (int s = 0; s < kBodyStates; ++s)
      if (b.is_empty_in(BodyState::at(s))) print(" empty_in {}", state_word(BodyState::at(s)));
    if (b.pick)
      print(" bank {} index {} place {} of {}", buffers_[b.pick->bank], buffers_[b.pick->index],
            b.pick->place, b.pick->places);
    print(" pieces ");
    for (size_t p = 1; p < b.cuts.size();) {
      const uint64_t bytes = b.cuts[p] - b.cuts[p - 1];
      size_t end = p + 1;
      while (end < b.cuts.size() && b.cuts[end] - b.cuts[end - 1] == bytes) ++end;
      print("{}{}", p > 1 ? "," : "", bytes);
      if (end - p > 1) print("x{}", end - p);
      p = end;
    }
    print("\n");
  }

  void print_body(const Body& b) {
    print("body {} {} -> {}", encode(b.name), state_word(b.start), state_word(b.end));
    if (!b.advance.empty()) print(" advance");
    print_numbers(b.advance);
    if (!b.peak_bytes.empty()) print(" peak");
    print_numbers(b.peak_bytes);
    if (!b.predecessors.empty()) print(" after");
    for (const BodyId p : b.predecessors) print(" {}", bodies_[p]);
    print("\n");
  }

  void print_lists(const Body& body, const std::string& name) {
    print("tasks {}\n", name);
    for (size_t t = 0; t < body.tasks.size(); ++t) {
      const Task& task = body.tasks[t];
      print("{} {} {}/{}", t, task_kind_name(task.kind), task.subject, task.slice);
      if (task.recompute != Recompute::none) print(" recompute {}", recompute_name(task.recompute));
      if (is_collective(task.kind)) print(" among {}", processes_[task.processes]);
      print(" flops {} bytes {}", task.flops, task.bytes);
      if (task.pass != kNoPass) print(" pass {}", task.pass);
      print_operands(task.operands);
      print("\n");
    }
    print("instructions {}\n", name);
    std::vector<uint32_t> ordinals(program_.machine.lanes.size());
    for (size_t i = 0; i < body.instructions.size(); ++i) {
      const Instruction& instruction = body.instructions[i];
      const std::string& lane = lanes_[instruction.lane];
      print("{} {}:{} ", i, lane, ++ordinals[instruction.lane]);
      print_action(body, instruction);
      for (const Wait& w : instruction.waits) print(" after {}:{}", lanes_[w.lane], w.count);
      for (size_t p = 0; p < std::min(instruction.waits_before.size(), body.predecessors.size()); ++p)
        for (const Wait& w : instruction.waits_before[p])
          print(" after {}/{}:{}", bodies_[body.predecessors[p]], lanes_[w.lane], w.count);
      print("\n");
    }
  }

  void print_action(const Body& body, const Instruction& i) {
    if (i.task == kNoTask && is_plain_copy(i)) {
      print("copy ");
      print_operand(i.operands[0]);
      if (i.operands[1].version != i.operands[0].version) print(">{}", i.operands[1].version);
      print(" {}+{} -> {}+{}", tiers_[i.places[0].tier], i.places[0].offset, tiers_[i.places[1].tier],
            i.places[1].offset);
      return;
    }
    if (i.task < body.tasks.size() && i.operands == body.tasks[i.task].operands) {
      print("run {}", i.task);
    } else {
      print("raw {}", i.task == kNoTask ? "-" : std::to_string(i.task));
      print_operands(i.operands);
    }
    if (!i.places.empty()) print(" at");
    for (const Place& p : i.places) print(" {}+{}", tiers_[p.tier], p.offset);
  }

  static bool is_plain_copy(const Instruction& i) {
    if (i.operands.size() != 2 || i.places.size() != 2) return false;
    Operand expected = i.operands[0];
    expected.access = Access::write;
    expected.version = i.operands[1].version;
    return i.operands[0].access == Access::read && i.operands[1] == expected;
  }

  void print_operands(const std::vector<Operand>& operands) {
    for (const Operand& o : operands) {
      print(" {} ", kAccessWords[static_cast<int>(o.access)]);
      if (o.by_host) print("{} ", kByHostWord);
      print_operand(o);
      if (o.role != Role::none) print(" {} {}", kRoleWord, role_name(o.role));
    }
  }
  void print_operand(const Operand& o) {
    print("{}", buffers_[o.buffer]);
    if (o.back != 0) print("~{}", o.back);
    if (o.first + 1 == o.last && program_.buffers[o.buffer].pieces() > 1)
      print("[{}]", o.first);
    else if (o.first != 0 || o.last != program_.buffers[o.buffer].pieces())
      print("[{}:{}]", o.first, o.last);
    print("@{}", o.version);
  }

  const Program& program_;
  const References tiers_, lanes_, processes_, rings_, buffers_, bodies_;
  fmt::memory_buffer out_;
};

}  // namespace

std::string to_text(const Program& program) { return Printer(program).run(); }

}  // namespace sluice
