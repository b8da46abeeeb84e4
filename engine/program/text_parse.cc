// Parses the text form of programs; text_words.h has the grammar. Every index in the result is in range
// (tiers, lanes, links, units, rings, buffers, bodies, pieces); all else is the verifier's business.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/program/program.h"
#include "engine/program/roles.h"
#include "engine/program/text_words.h"

namespace sluice {

namespace {

constexpr size_t kPiecesMax = size_t{1} << 22;  // of all buffers; a row of ten bytes can ask for any number

[[noreturn]] void fail(const std::string& reason) { throw std::invalid_argument(reason); }

std::string quoted(std::string_view word) { return "'" + printable(std::string(word.substr(0, 80))) + "'"; }

template <typename Number>
Number parse_number(std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size())
    fail(quoted(word) + " is not a number that fits here");
  return value;
}

std::string decode(std::string_view word) {
  std::string out;
  if (word == "%") return out;
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '%') {
      out += word[i];
      continue;
    }
    unsigned value = 0;
    if (i + 2 >= word.size() ||
        std::from_chars(word.data() + i + 1, word.data() + i + 3, value, 16).ptr != word.data() + i + 3)
      fail(quoted(word) + " has a % without two hexadecimal digits");
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

// The two halves around the last `separator`; `what` names the form for the message.
std::pair<std::string_view, std::string_view> halves(std::string_view word, char separator,
                                                     const char* what) {
  const size_t at = word.rfind(separator);
  if (at == std::string_view::npos) fail(quoted(word) + " is not " + what);
  return {word.substr(0, at), word.substr(at + 1)};
}

template <size_t N>
size_t index_of(std::string_view word, const char* const (&words)[N], const char* what) {
  for (size_t i = 0; i < N; ++i)
    if (word == words[i]) return i;
  fail(quoted(word) + " is not " + what);
}

// Names of one table's rows.
class Names {
 public:
  explicit Names(const char* what, size_t rows_max) : what_(what), rows_max_(rows_max) {}
  void add(const std::string& name) {
    if (count_ == rows_max_) fail(fmt::format("there are more than {} rows of this kind", rows_max_));
    const auto [it, fresh] = index_.try_emplace(name, count_++);
    if (!fresh) it->second = kAmbiguous;
  }
  template <typename Id>
  Id find(std::string_view word) const {
    if (!word.empty() && word[0] == '#') {
      const auto index = parse_number<size_t>(word.substr(1));
      if (index >= count_) fail(fmt::format("there is no {} {}", what_, quoted(word)));
      return static_cast<Id>(index);
    }
    const auto it = index_.find(decode(word));
    if (it == index_.end()) fail(fmt::format("there is no {} {}", what_, quoted(word)));
    if (it->second == kAmbiguous)
      fail(fmt::format("there are several {} rows {}; use #index", what_, quoted(word)));
    return static_cast<Id>(it->second);
  }

 private:
  static constexpr size_t kAmbiguous = SIZE_MAX;
  const char* what_;
  size_t rows_max_, count_ = 0;
  std::unordered_map<std::string, size_t> index_;
};

// The tokens of one line.
class Row {
 public:
  explicit Row(std::string_view line) : rest_(line) { skip(); }
  bool done() const { return rest_.empty(); }
  std::string_view peek() const { return rest_.substr(0, rest_.find(' ')); }
  std::string_view next() {
    if (done()) fail("the line ends too early");
    const std::string_view word = peek();
    rest_.remove_prefix(word.size());
    skip();
    return word;
  }
  bool accept(std::string_view word) {
    if (done() || peek() != word) return false;
    next();
    return true;
  }
  void expect(std::string_view word) {
    if (!accept(word))
      fail(done() ? "the line ends before " + quoted(word)
                  : quoted(peek()) + " stands where " + quoted(word) + " is expected");
  }
  template <typename Number>
  Number number() {
    return parse_number<Number>(next());
  }
  bool at_number() const { return !done() && rest_[0] >= '0' && rest_[0] <= '9'; }

 private:
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  std::string_view rest_;
};

class Parser {
 public:
  Program run(std::string_view text) {
    size_t line = 0;
    bool header = false;
    try {
      while (!text.empty()) {
        ++line;
        const size_t end = std::min(text.find('\n'), text.size());
        Row row(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        if (row.done()) continue;
        if (!header)
          expect_header(row);
        else
          parse_row(row);
        header = true;
        if (!row.done()) fail(quoted(row.peek()) + " stands after the end of the row");
      }
      if (!header) fail("the text is empty");
      resolve_predecessors();
    } catch (const std::invalid_argument& e) {
      throw std::invalid_argument(fmt::format("line {}: {}", line, e.what()));
    }
    return std::move(program_);
  }

 private:
  static void expect_header(Row& row) {
    row.expect("sluice");
    row.expect("program");
    row.expect("1");
  }

  void parse_row(Row& row) {
    if (row.at_number() && section_ != Section::tables) {
      if (section_ == Section::tasks)
        parse_task(row);
      else
        parse_instruction(row);
      return;
    }
    const std::string_view kind = row.next();
    if (kind == "tasks" || kind == "instructions") return begin_section(kind, row);
    if (section_ != Section::tables) fail(quoted(kind) + " stands among tasks and instructions");
    if (kind == "tier")
      parse_tier(row);
    else if (kind == "lane")
      parse_lane(row);
    else if (kind == "link")
      parse_link(row);
    else if (kind == "unit")
      parse_unit(row);
    else if (kind == "processes")
      parse_processes(row);
    else if (kind == "pass")
      parse_pass(row);
    else if (kind == "ring")
      parse_ring(row);
    else if (kind == "buffer")
      parse_buffer(row);
    else if (kind == "arena")
      while (!row.done()) program_.arena_bytes.push_back(row.number<uint64_t>());
    else if (kind == "body")
      parse_body(row);
    else
      fail(quoted(kind) + " is not a kind of row");
  }

  void begin_section(std::string_view kind, Row& row) {
    if (section_ == Section::tables) resolve_predecessors();
    body_ = &program_.bodies[bodies_.find<size_t>(row.next())];
    section_ = kind == "tasks" ? Section::tasks : Section::instructions;
    ordinals_.assign(program_.machine.lanes.size(), 0);
    for (const Instruction& i : body_->instructions) ++ordinals_[i.lane];
  }

  void parse_tier(Row& row) {
    Tier t;
    t.name = decode(row.next());
    row.expect("capacity");
    t.capacity = row.number<uint64_t>();
    row.expect("alignment");
    t.alignment = row.number<uint64_t>();
    t.file = row.accept("file");
    tiers_.add(t.name);
    program_.machine.tiers.push_back(std::move(t));
  }
  void parse_lane(Row& row) {
    Lane l;
    l.name = decode(row.next());
    l.overlapping = row.accept("overlapping");
    lanes_.add(l.name);
    program_.machine.lanes.push_back(std::move(l));
  }
  void parse_link(Row& row) {
    const auto from = tiers_.find<TierId>(row.next()), to = tiers_.find<TierId>(row.next());
    const auto lane = lanes_.find<LaneId>(row.next());
    row.expect("alignment");
    program_.machine.links.push_back({from, to, lane, row.number<uint64_t>()});
  }
  void parse_unit(Row& row) {
    const TaskKind kind = task_kind(row.next());
    const auto lane = lanes_.find<LaneId>(row.next());
    program_.machine.units.push_back({kind, lane, tiers_.find<TierId>(row.next())});
  }
  void parse_processes(Row& row) {
    ProcessGroup g;
    g.name = decode(row.next());
    row.expect("count");
    g.count = row.number<uint32_t>();
    row.expect("stride");
    g.stride = row.number<uint32_t>();
    if (g.count == 0 || g.stride == 0) fail("a process group has a count or a stride of 0");
    processes_.add(g.name);
    program_.processes.push_back(std::move(g));
  }
  static std::pair<double, uint64_t> parse_cost(Row& row) {
    row.expect("flops");
    const auto flops = row.number<double>();
    if (!std::isfinite(flops)) fail("flops are not finite");
    row.expect("bytes");
    return {flops, row.number<uint64_t>()};
  }
  void parse_pass(Row& row) {
    SegmentPass p;
    while (!row.done()) {
      const std::optional<OpKind> kind = op_kind(row.peek());
      if (!kind) fail(quoted(row.peek()) + " is not a kind of op");
      row.next();
      const auto [flops, bytes] = parse_cost(row);
      p.ops.push_back({*kind, flops, bytes});
    }
    program_.passes.push_back(std::move(p));
  }
  void parse_ring(Row& row) {
    Ring ring;
    ring.name = decode(row.next());
    if (row.accept("slots")) ring.slots = row.number<uint16_t>();
    rings_.add(ring.name);
    program_.rings.push_back(std::move(ring));
  }

  static TaskKind task_kind(std::string_view word) {
    for (int k = 0; k < kTaskKinds; ++k)
      if (word == task_kind_name(static_cast<TaskKind>(k))) return static_cast<TaskKind>(k);
    fail(quoted(word) + " is not a kind of task");
  }
  static BufferClass buffer_class(std::string_view word) {
    for (size_t c = 0; c < kBufferClasses; ++c)
      if (word == buffer_class_name(static_cast<BufferClass>(c))) return static_cast<BufferClass>(c);
    fail(quoted(word) + " is not a class of buffers");
  }
  static Recompute recompute_level(std::string_view word) {
    for (const Recompute level : kRecomputes)
      if (word == recompute_name(level)) return level;
    fail(quoted(word) + " is not a level of recomputation");
  }
  static Role role(std::string_view word) {
    for (int r = 1; r < kRoles; ++r)
      if (word == role_name(static_cast<Role>(r))) return static_cast<Role>(r);
    fail(quoted(word) + " is not a role of operands");
  }
  static BodyState body_state(std::string_view word) {
    for (int s = 0; s < kBodyStates; ++s)
      if (word == state_word(BodyState::at(s))) return BodyState::at(s);
    fail(quoted(word) + " is not a state of bodies");
  }

  void parse_buffer(Row& row) {
    Buffer b;
    b.name = decode(row.next());
    b.kind = buffer_class(row.next());
    b.permanent = row.accept("permanent");
    row.expect("home");
    const std::string_view home = row.next();
    const size_t plus = home.find('+');
    b.home = tiers_.find<TierId>(home.substr(0, plus));
    if (plus != std::string_view::npos) b.home_offset = parse_number<uint64_t>(home.substr(plus + 1));
    if (row.accept("ring")) b.ring = rings_.find<uint8_t>(row.next());
    if (row.accept("stride")) b.slot_stride = row.number<uint64_t>();
    while (row.accept("empty_in")) b.empty_in.add(body_state(row.next()));
    if (row.accept("bank")) b.pick = parse_pick(row);
    row.expect("pieces");
    parse_pieces(row.next(), b.cuts);
    buffers_.add(b.name);
    program_.buffers.push_back(std::move(b));
  }
  Pick parse_pick(Row& row) const {
    Pick pick;
    pick.bank = buffers_.find<BufferId>(row.next());
    row.expect("index");
    pick.index = buffers_.find<BufferId>(row.next());
    row.expect("place");
    pick.place = row.number<uint32_t>();
    row.expect("of");
    pick.places = row.number<uint32_t>();
    return pick;
  }
  void parse_pieces(std::string_view word, std::vector<uint64_t>& cuts) {
    cuts.push_back(0);
    while (true) {
      const size_t comma = std::min(word.find(','), word.size());
      const std::string_view run = word.substr(0, comma);
      const size_t times = run.find('x');
      const auto bytes = parse_number<uint64_t>(run.substr(0, times));
      const auto count = times == std::string_view::npos ? 1 : parse_number<size_t>(run.substr(times + 1));
      if (count == 0 || count > kPiecesMax - pieces_) fail("there are no pieces, or too many");
      pieces_ += count;
      for (size_t i = 0; i < count; ++i) cuts.push_back(cuts.back() + bytes);
      if (comma == word.size()) return;
      word.remove_prefix(comma + 1);
    }
  }

  void parse_body(Row& row) {
    Body b;
    b.name = decode(row.next());
    b.start = body_state(row.next());
    row.expect("->");
    b.end = body_state(row.next());
    if (row.accept("advance"))
      while (row.at_number()) b.advance.push_back(row.number<uint8_t>());
    if (row.accept("peak"))
      while (row.at_number()) b.peak_bytes.push_back(row.number<uint64_t>());
    predecessor_words_.emplace_back();
    if (row.accept("after"))
      while (!row.done()) predecessor_words_.back().emplace_back(row.next());
    if (predecessor_words_.back().size() > 254) fail("there are more predecessors than there can be bodies");
    bodies_.add(b.name);
    program_.bodies.push_back(std::move(b));
  }
  void resolve_predecessors() {
    for (size_t b = 0; b < program_.bodies.size(); ++b) {
      for (const std::string& word : predecessor_words_[b])
        program_.bodies[b].predecessors.push_back(bodies_.find<BodyId>(word));
      predecessor_words_[b].clear();
    }
  }

  Operand parse_operand(std::string_view word, Access access) const {
    Operand o;
    o.access = access;
    auto [place, version] = halves(word, '@', "buffer[pieces]@version");
    o.version = parse_number<uint32_t>(version);
    const size_t bracket = place.find('[');
    std::string_view pieces;
    if (bracket != std::string_view::npos) {
      if (place.back() != ']') fail(quoted(word) + " lacks a ]");
      pieces = place.substr(bracket + 1, place.size() - bracket - 2);
      place = place.substr(0, bracket);
    }
    const size_t tilde = place.find('~');
    if (tilde != std::string_view::npos) o.back = parse_number<uint8_t>(place.substr(tilde + 1));
    o.buffer = buffers_.find<BufferId>(place.substr(0, tilde));
    o.last = program_.buffers[o.buffer].pieces();
    if (bracket != std::string_view::npos) parse_piece_range(pieces, o);
    return o;
  }
  static void parse_piece_range(std::string_view word, Operand& o) {
    const uint32_t count = o.last;
    const size_t colon = word.find(':');
    o.first = parse_number<uint32_t>(word.substr(0, colon));
    if (o.first >= count) fail(fmt::format("there is no piece {}, the buffer has {}", o.first, count));
    o.last = colon == std::string_view::npos ? o.first + 1 : parse_number<uint32_t>(word.substr(colon + 1));
    if (o.last <= o.first || o.last > count)
      fail(fmt::format("pieces {} are not in a buffer of {}", quoted(word), count));
  }
  void parse_operands(Row& row, std::vector<Operand>& operands) const {
    while (!row.done()) {
      const std::string_view word = row.peek();
      size_t access = 0;
      while (access < std::size(kAccessWords) && word != kAccessWords[access]) ++access;
      if (access == std::size(kAccessWords)) return;
      row.next();
      const bool by_host = row.accept(kByHostWord);
      operands.push_back(parse_operand(row.next(), static_cast<Access>(access)));
      operands.back().by_host = by_host;
      if (row.accept(kRoleWord)) operands.back().role = role(row.next());
    }
  }
  Place parse_place(std::string_view word) const {
    const auto [tier, offset] = halves(word, '+', "tier+offset");
    return {tiers_.find<TierId>(tier), parse_number<uint64_t>(offset)};
  }

  void parse_task(Row& row) {
    if (row.number<size_t>() != body_->tasks.size())
      fail(fmt::format("task {} is expected", body_->tasks.size()));
    Task t;
    t.kind = task_kind(row.next());
    const auto [subject, slice] = halves(row.next(), '/', "subject/slice");
    t.subject = parse_number<uint32_t>(subject);
    t.slice = parse_number<uint32_t>(slice);
    if (row.accept("recompute")) t.recompute = recompute_level(row.next());
    if (is_collective(t.kind)) {
      row.expect("among");
      t.processes = processes_.find<uint8_t>(row.next());
    }
    std::tie(t.flops, t.bytes) = parse_cost(row);
    if (row.accept("pass")) {
      t.pass = row.number<uint32_t>();
      if (t.pass >= program_.passes.size()) fail(fmt::format("there is no pass {}", t.pass));
    }
    parse_operands(row, t.operands);
    body_->tasks.push_back(std::move(t));
  }

  void parse_instruction(Row& row) {
    if (row.number<size_t>() != body_->instructions.size())
      fail(fmt::format("instruction {} is expected", body_->instructions.size()));
    Instruction i;
    const auto [lane, ordinal] = halves(row.next(), ':', "lane:ordinal");
    i.lane = lanes_.find<LaneId>(lane);
    if (parse_number<uint32_t>(ordinal) != ++ordinals_[i.lane])
      fail(fmt::format("this is number {} of its lane", ordinals_[i.lane]));
    const std::string_view action = row.next();
    if (action == "copy")
      parse_copy(row, i);
    else if (action == "run")
      parse_run(row, i);
    else if (action == "raw")
      parse_raw(row, i);
    else
      fail(quoted(action) + " is not copy, run or raw");
    i.waits_before.resize(body_->predecessors.size());
    while (!row.done()) parse_wait(row, i);
    body_->instructions.push_back(std::move(i));
  }
  void parse_copy(Row& row, Instruction& i) const {
    std::string_view word = row.next();
    const size_t target = word.rfind('>');
    i.operands.push_back(parse_operand(word.substr(0, target), Access::read));
    i.operands.push_back(i.operands[0]);
    i.operands[1].access = Access::write;
    if (target != std::string_view::npos)
      i.operands[1].version = parse_number<uint32_t>(word.substr(target + 1));
    i.places.push_back(parse_place(row.next()));
    row.expect("->");
    i.places.push_back(parse_place(row.next()));
  }
  void parse_run(Row& row, Instruction& i) const {
    i.task = row.number<uint32_t>();
    if (i.task >= body_->tasks.size()) fail(fmt::format("there is no task {}", i.task));
    i.operands = body_->tasks[i.task].operands;
    parse_places(row, i);
  }
  void parse_raw(Row& row, Instruction& i) const {
    if (!row.accept("-")) i.task = row.number<uint32_t>();
    parse_operands(row, i.operands);
    parse_places(row, i);
  }
  void parse_places(Row& row, Instruction& i) const {
    if (!row.accept("at")) return;
    while (!row.done() && row.peek() != "after") i.places.push_back(parse_place(row.next()));
  }
  void parse_wait(Row& row, Instruction& i) const {
    row.expect("after");
    const auto [where, count] = halves(row.next(), ':', "[body/]lane:count");
    const size_t slash = where.find('/');
    const size_t lane_begin = slash == std::string_view::npos ? 0 : slash + 1;
    const Wait wait{lanes_.find<LaneId>(where.substr(lane_begin)), parse_number<uint32_t>(count)};
    if (slash == std::string_view::npos) return i.waits.push_back(wait);
    const auto before = bodies_.find<BodyId>(where.substr(0, slash));
    for (size_t p = 0; p < body_->predecessors.size(); ++p)
      if (body_->predecessors[p] == before) return i.waits_before[p].push_back(wait);
    fail(quoted(where.substr(0, slash)) + " is not a predecessor of this body");
  }

  enum class Section { tables, tasks, instructions };
  Program program_;
  Section section_ = Section::tables;
  Body* body_ = nullptr;
  std::vector<uint32_t> ordinals_;  // by lane, in the current body
  std::vector<std::vector<std::string>> predecessor_words_;
  size_t pieces_ = 0;
  Names tiers_{"tier", 254}, lanes_{"lane", 254}, processes_{"process group", 254}, rings_{"ring", 254},
      bodies_{"body", 254}, buffers_{"buffer", size_t{1} << 31};
};

}  // namespace

Program program_from_text(const std::string& text) { return Parser().run(text); }

}  // namespace sluice
