// The program: a training step as data. Planner passes write it; verifier, simulator and executors read it.
//
// tier        an address space with one arena: a row of the tier table; segments run in row 0, the top
// link        moves bytes from one tier to another on a lane: a row of the link table
// lane        an in-order queue of instructions on one resource. An `overlapping` lane starts an instruction
//             once the one before has started, any other lane once it has completed. On every lane,
//             completions are counted in order
// buffer      storage with one home tier, cut into pieces; transfers, versions and waits are per piece
// task        one entry of the abstract step, before tiers exist; operands are pieces of buffers with
//             versions
// instruction one entry of a body: a task or a transfer, with an address for every operand
// process     ranks that carry out a collective together: all ranks, or one of the equal groups into which
// group       the ranks are divided; Task::processes says which division
// body        a list of instructions that begins and ends in a declared state; several share the arenas
// wait        (lane, n): that lane has completed its first n instructions of this body, or of the body before
// bank        a permanent buffer of equal parts, such as the weights of a layer's experts. A picked buffer
//             (Pick) has the content of one part; which part is known when the body runs
// ring        buffers that exist once per training step (or validation batch), in as many slots as the ring
//             has: `back` 0 is the body's own slot, 1 the one before. Body::advance says how far a body moves
//             each ring
//
// Rules that hold for every program (the verifier checks them):
// - A body's list order is a legal serial order. Instruction n of a lane (from 1) is its n-th in the list.
// - No lane starts the n-th body of a run before every lane has completed the (n - 2)-th. Apart from that,
//   waits are the only synchronisation.
// - A permanent buffer has the same home address in every body, and its home is current at every boundary
//   between bodies at which it has content. Staged copies and transient buffers end with the body.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/graph/op.h"

namespace sluice {

using TierId = uint8_t;
using LaneId = uint8_t;
using BufferId = uint32_t;
using BodyId = uint8_t;

struct Tier {
  std::string name;
  uint64_t capacity = 0;   // bytes of its arena at most
  uint64_t alignment = 1;  // of every placed range; a power of two
  bool file = false;       // bytes live in files: reads and writes are requests with checksums
};

struct Link {
  TierId from, to;
  LaneId lane;
  uint64_t alignment = 1;  // of both ends and the length of a transfer; a power of two
};

struct Lane {
  std::string name;
  bool overlapping = false;
};

enum class TaskKind : uint8_t {
  forward,      // run a segment on a micro-batch
  backward,     // run a segment's backward on a micro-batch; first make again what Task::recompute says
  round,        // round a shard's gradient accumulator to working precision; without other ranks, also
                // make block sums
  norm,         // add the block sums of all groups (kNormBlock)
  set_scalars,  // t, loss scale, clip factor and the optimizer's constants of this step
  optimize,     // update one shard: commit the update to its state, make its weights
  visit,        // commit the update of the step before, make weights by a guess of this step's update
  repair,       // make weights by the true update where the guess was wrong, and commit nothing
  set_guess,    // the constants that this step's update has if nothing is clipped or skipped
  load,         // fill one shard with its first values (initial, from a checkpoint, or from weights)
  save,         // write one shard's state to the checkpoint
  gather,       // all-gather: every rank of a process group gets the parts of all, in order of rank
  exchange,     // all-to-all: every rank of a process group gets its own part from all, in order of rank
  sum,          // add what was exchanged, as a tree over ranks; the last sum of a gradient also rounds and
                // makes block sums
  compress,     // add a group's gradient to its compression error, make the left factor
  project,      // make the right factor from the summed left one; what the factors leave out is the new error
  expand,       // make a shard's gradient from the summed factors, and its block sums
  clone,        // copy a shard's state and weights from the group whose weights its layer used until now
  clear,        // fill a kept activation with zeros
  travel,       // forward of a segment that ranks carry out together
  travel_back,  // its backward
};
constexpr int kTaskKinds = 21;
const char* task_kind_name(TaskKind kind);
// The task's subject is a segment use, with a micro-batch.
constexpr bool is_of_segment(TaskKind kind) {
  return kind == TaskKind::forward || kind == TaskKind::backward || kind == TaskKind::travel ||
         kind == TaskKind::travel_back;
}
constexpr bool is_backward(TaskKind kind) {
  return kind == TaskKind::backward || kind == TaskKind::travel_back;
}
// Whether a process group carries it out together.
constexpr bool is_collective(TaskKind kind) {
  return kind == TaskKind::gather || kind == TaskKind::exchange || kind == TaskKind::travel ||
         kind == TaskKind::travel_back;
}

// Where a kind of task can run.
struct Unit {
  TaskKind kind;
  LaneId lane;
  TierId tier;
};

// The machine tables: how a device, with the host and drives around it, describes itself to the planner.
struct Machine {
  std::vector<Tier> tiers;
  std::vector<Link> links;
  std::vector<Lane> lanes;
  std::vector<Unit> units;  // where several fit a task, assemble.h says which one it takes
};

// What permanent buffers hold where a body starts or ends.
struct BodyState {
  enum class Update : uint8_t {
    committed,
    pending,  // rounded gradients wait for the update, which has yet to make the weights
    guessed   // rounded gradients wait for the update, but weights have been made by a guess of it
  };

  bool loaded = true;                 // false: buffers have nothing yet, and the fields below mean nothing
  Update update = Update::committed;  // of the last step that has ended
  bool shared = false;                // layers that are alike use one parameter group
  bool between_waves = false;         // some waves of a step have run; accumulators have their sums

  constexpr int index() const;  // below kBodyStates
  static constexpr BodyState at(int index);

  // A step has ended, and it is not known yet whether its guess was right.
  constexpr bool is_guessed() const { return update == Update::guessed && !between_waves; }

  static const BodyState empty, clean, pending, guessed;
  bool operator==(const BodyState&) const = default;
};
// The Boolean facts. Fact f is bit f of (index - 1) / 3, where index is the state's.
inline constexpr std::array kBodyFacts{&BodyState::shared, &BodyState::between_waves};
inline constexpr int kBodyStates = 1 + 3 * (1 << kBodyFacts.size());

constexpr int BodyState::index() const {
  if (!loaded) return 0;
  int facts = 0;
  for (size_t f = 0; f < kBodyFacts.size(); ++f) facts += int{this->*kBodyFacts[f]} << f;
  return 1 + static_cast<int>(update) + 3 * facts;
}
constexpr BodyState BodyState::at(int index) {
  if (index == 0) return {.loaded = false};
  BodyState state{.update = static_cast<Update>((index - 1) % 3)};
  for (size_t f = 0; f < kBodyFacts.size(); ++f) state.*kBodyFacts[f] = ((index - 1) / 3 >> f & 1) != 0;
  return state;
}

inline constexpr BodyState BodyState::empty = {.loaded = false};
inline constexpr BodyState BodyState::clean = {};
inline constexpr BodyState BodyState::pending = {.update = Update::pending};
inline constexpr BodyState BodyState::guessed = {.update = Update::guessed};

// A run whose last body ends in `guessed` is in `pending` if the guess was wrong. So a body that starts in
// `pending` may follow one that ends in `guessed`.
constexpr bool can_follow(BodyState end, BodyState start) {
  if (end.is_guessed() && start.update == BodyState::Update::pending) end.update = start.update;
  return end == start;
}

// A set of states.
class BodyStates {
 public:
  BodyStates() = default;
  BodyStates(std::initializer_list<BodyState> states) {
    for (const BodyState s : states) add(s);
  }
  void add(BodyState s) { bits_ |= 1u << s.index(); }
  bool has(BodyState s) const { return (bits_ >> s.index() & 1) != 0; }
  bool none() const { return bits_ == 0; }
  bool operator==(const BodyStates&) const = default;

 private:
  static_assert(kBodyStates <= 32);
  uint32_t bits_ = 0;
};

// caches: activations that stay from one body to the next.
enum class BufferClass : uint8_t { weights, gradients, state, caches, activations, workspace, scalars };
const char* buffer_class_name(BufferClass c);

// The trainer prepares one step while another runs and the one before is read: three slots.
struct Ring {
  std::string name;
  uint16_t slots = 3;  // 2 to kRingSlotsMax
};
constexpr uint16_t kRingSlotsMax = 4096;
constexpr uint8_t kNoRing = 255;

// A body needs few of a bank's parts, and knows which only while it runs. So there are `places` picked
// buffers, as many as the parts that it can need at most. Another buffer, the index, says what falls to each
// part. It begins with i32 [parts + 1]: the numbers from index[p] to below index[p + 1] fall to part p. Place
// s has the s-th part (from 0) to which any number falls, or no part if fewer parts have numbers.
//
// A picked buffer is permanent, since its home is that of the bank. At home it may be any of the bank's
// parts, so an access to it there is an access to the whole bank. A picked buffer is only read. An
// instruction with picked operands also has the index as an operand, which the host reads (Operand::by_host).
// Where the place has no part, a transfer moves nothing, and a task only begins its sums. One task of a body
// writes the index, once.
struct Pick {
  BufferId bank = 0, index = 0;
  uint32_t place = 0, places = 1;

  bool operator==(const Pick&) const = default;
};

struct Buffer {
  std::string name;
  BufferClass kind = BufferClass::activations;
  std::vector<uint64_t> cuts;  // piece p is bytes [cuts[p], cuts[p+1]); cuts.front() == 0
  TierId home = 0;
  bool permanent = false;    // lives across bodies, at home_offset
  uint8_t ring = kNoRing;    // unless kNoRing: permanent; slot n lies at home_offset + n * slot_stride
  BodyStates empty_in = {};  // states in which a permanent buffer has no content; its home has any bytes then
  uint64_t home_offset = 0;
  uint64_t slot_stride = 0;  // of a bank: from one part to the next
  std::optional<Pick> pick = {};
  uint64_t bytes() const { return cuts.back(); }
  uint32_t pieces() const { return static_cast<uint32_t>(cuts.size() - 1); }
  bool owns_home() const { return permanent && !pick; }
  bool is_empty_in(BodyState state) const { return empty_in.has(state); }
};

// write: the old content is not needed; add: read and write.
enum class Access : uint8_t { read, write, add };

// What an operand is for its task. roles.h says which kinds of tasks have which.
enum class Role : uint8_t {
  none,
  input,
  weights,
  output,
  saved,
  workspace,
  loss,
  index,  // of what is picked
  output_gradient,
  input_gradient,
  accumulator,
  gradient,
  next_gradient,  // of this step, while `gradient` still waits for its update
  state,
  input_scalars,
  update,           // scalars of the update that the task makes
  previous_update,  // scalars of the update before
  guess,            // scalars
  norm,
  norm_sums,
  block_sums,
  part,
  whole,
  sent,
  received,
  sum,
  error,  // of a compression
  left_factor,
  right_factor,
  source,
  copy,
  number_of_roles  // not a role
};

// Pieces [first, last) of a buffer. Every piece counts its versions within a body: every write or add makes
// the next one. Version 0 of a permanent buffer is what the body before left; a transient buffer has no
// content before version 1.
struct Operand {
  BufferId buffer = 0;
  uint32_t first = 0, last = 0;
  Access access = Access::read;
  // read, add: the version to be found; write: the version replaced; target of a transfer: the version
  // copied.
  uint32_t version = 0;
  uint8_t back = 0;  // ring slot, counted back from the body's own
  // The host reads the operand, in the lowest memory tier, before it carries out or enqueues the instruction,
  // to know what to do. The operand's buffer is transient and has one piece. An instruction has at most one
  // such operand.
  bool by_host = false;
  Role role = Role::none;  // none: of a transfer

  bool operator==(const Operand&) const = default;
};

constexpr uint32_t kNoPass = UINT32_MAX;

struct Task {
  TaskKind kind;
  uint32_t subject = 0;  // of a segment: its use in forward order; norm, set_scalars: 0; clear: activation;
                         // others: parameter group
  uint32_t slice = 0;    // of a segment: micro-batch; others: shard, or 0 for a group's whole buffers
  Recompute recompute = Recompute::none;  // of a segment: what is not kept but made again
  double flops = 0;
  uint64_t bytes = 0;  // memory traffic at least, for the cost model
  std::vector<Operand> operands;
  uint8_t processes = 0;  // collectives: index into Program::processes
  // A task of a segment has an index into Program::passes; its flops and bytes are the sums over that pass.
  uint32_t pass = kNoPass;
};

struct Place {
  TierId tier = 0;
  uint64_t offset = 0;  // of the operand's first byte; ring operands at home: of slot 0
};

struct Wait {
  LaneId lane = 0;
  uint32_t count = 0;  // that lane has completed its first `count` instructions
};

constexpr uint32_t kNoTask = UINT32_MAX;
constexpr uint32_t kNoInstruction = UINT32_MAX;

struct Instruction {
  LaneId lane = 0;
  uint32_t task = kNoTask;        // index into Body::tasks; kNoTask: a transfer, operands are {source read,
                                  // target write}, and the index of what is picked
  std::vector<Operand> operands;  // of a task: exactly the task's
  std::vector<Place> places;      // by operand
  std::vector<Wait> waits;        // within this body
  std::vector<std::vector<Wait>> waits_before;  // on the body before; by Body::predecessors
};

struct Body {
  std::string name;
  BodyState start = BodyState::clean, end = BodyState::clean;
  std::vector<uint8_t> advance;      // by ring: 0 or 1
  std::vector<BodyId> predecessors;  // every body that it can_follow, in order of id
  std::vector<Task> tasks;           // in the order that lowering gave
  std::vector<Instruction> instructions;
  std::vector<uint64_t> peak_bytes;  // by tier: highest address in use, permanent homes included
};

struct Program {
  Machine machine;
  std::vector<ProcessGroup> processes;  // empty: a rank alone
  std::vector<SegmentPass> passes;
  std::vector<Ring> rings;
  std::vector<Buffer> buffers;
  std::vector<Body> bodies;
  std::vector<uint64_t> arena_bytes;  // by tier: the largest peak of any body
};

// How many copies of a buffer there are, and the bytes that they take at home.
inline uint32_t slots_of(const Program& p, const Buffer& b) {
  return b.ring == kNoRing ? 1u : p.rings[b.ring].slots;
}
inline uint64_t home_bytes(const Program& p, const Buffer& b) {
  if (b.pick) return 0;  // the bank's bytes count
  return b.ring == kNoRing ? b.bytes() : p.rings[b.ring].slots * b.slot_stride;
}

inline uint64_t operand_begin(const Buffer& b, const Operand& o) { return b.cuts[o.first]; }
inline uint64_t operand_bytes(const Buffer& b, const Operand& o) { return b.cuts[o.last] - b.cuts[o.first]; }

// The bytes that an operand may touch: its own bytes at its place or, for a picked buffer at home, the whole
// bank.
inline uint64_t touched_bytes(const Program& p, const Operand& o, const Place& place) {
  const Buffer& b = p.buffers[o.buffer];
  return b.pick && place.tier == b.home ? p.buffers[b.pick->bank].bytes() : operand_bytes(b, o);
}
inline uint64_t touched_begin(const Program& p, const Operand& o, const Place& place) {
  const Buffer& b = p.buffers[o.buffer];
  return b.pick && place.tier == b.home ? place.offset - operand_begin(b, o) : place.offset;
}

// The index of the picked operands; none if no operand is picked.
inline std::optional<BufferId> index_of(const Program& p, const std::vector<Operand>& operands) {
  for (const Operand& o : operands)
    if (p.buffers[o.buffer].pick) return p.buffers[o.buffer].pick->index;
  return std::nullopt;
}

// The position of the operand that the host reads; none if there is none.
inline std::optional<size_t> by_host(const std::vector<Operand>& operands) {
  for (size_t k = 0; k < operands.size(); ++k)
    if (operands[k].by_host) return k;
  return std::nullopt;
}

// Returns the wait after which it is known whether the body's guess was right. The next body is issued then.
// Count 0: the body does not guess, so there is nothing to wait for.
Wait when_decided(const Body& body);

// The address of a ring operand at home depends on the ring's position, which counts the advances of all
// bodies so far: slot = (position after this body's own advance - back) mod slots. Let body A be directly
// before body B, and count slots backwards from B's newest. Then an operand of B lies `back` slots behind, an
// operand of A `back + B.advance[ring]` slots behind. Staged copies of ring operands are placed as any other
// range.

// "backward 7/2" (subject and micro-batch) or "h2d weights.3 0-4" (pieces), for profilers and reports.
std::string instruction_name(const Program& program, const Body& body, const Instruction& instruction);

// The text form: everything above, one line a row, parseable. parse throws std::invalid_argument with line
// and reason.
std::string to_text(const Program& program);
Program program_from_text(const std::string& text);

// Constants of one optimizer update, prepared once a step and read by every update of a shard. Only the
// optimizer knows their layout (cpu_optim).
struct UpdateConstants {
  alignas(8) std::byte bytes[64];

  template <typename T>
  static UpdateConstants of(const T& constants) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(bytes) && alignof(T) <= 8);
    UpdateConstants out{};
    std::memcpy(out.bytes, &constants, sizeof(T));
    return out;
  }
  template <typename T>
  T as() const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(bytes) && alignof(T) <= 8);
    T constants;
    std::memcpy(&constants, bytes, sizeof(T));
    return constants;
  }
};

// Scalars of one training step: one ring slot of five pieces, so that a task waits only for the piece that it
// uses. Brackets say who writes each piece.
struct StepScalars {
  struct alignas(64) Input {  // [trainer, before the body is issued]
    double learning_rate;
    double valid_tokens;  // labels that count, over all micro-batches
  } input;
  struct alignas(64) Loss {  // [backward of the loss segment, one micro-batch after the other]
    double sum;              // over the step's valid tokens; the members are in the order that ops use
    double right;            // valid tokens whose logit is the largest; 0 unless the model counts them
    double of_routers;       // what router_loss added to the sum
    Loss& operator+=(const Loss& other) {
      sum += other.sum, right += other.right, of_routers += other.of_routers;
      return *this;
    }
  } loss;
  struct alignas(64) Norm {  // [norm]
    double norm;             // of the gradient without loss scale, before clipping
  } norm;
  struct alignas(64) Update {  // [set_scalars]; read by the next step
    int64_t t;                 // updates that were not skipped
    double loss_scale;         // for the next step's backward
    int64_t clean_steps;       // since the scale last changed
    int64_t skipped_steps;     // in total
    UpdateConstants constants;
    uint32_t skip;     // this step's update is skipped
    uint32_t clipped;  // this step's clip factor is less than 1
    bool as_guessed() const { return skip == 0 && clipped == 0; }
  } update;
  struct alignas(64) Guess {  // [set_guess]
    UpdateConstants constants;
  } guess;
};
static_assert(offsetof(StepScalars::Loss, right) == sizeof(double) &&
              offsetof(StepScalars::Loss, of_routers) == 2 * sizeof(double));

}  // namespace sluice
