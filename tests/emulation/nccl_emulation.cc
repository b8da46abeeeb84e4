// libnccl over the emulated GPUs, for ranks that are threads of this process.
//
// A call enqueues in its stream: work that hands over what the rank sends, a gate that opens when all ranks
// have come, and work that fetches. Misuse ends the process: calls that differ between ranks or come in
// another order; a call before the last one was settled, on another GPU than the rank's, or after an abort; a
// group that is not ended. Three things are as with NCCL. A call's work is enqueued some time after the call
// has returned, when its result is looked at. Ranks that share a GPU are refused. A rank that waits for a
// failed one waits until it aborts its own part.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "gpu/cuda/nccl.h"
#include "tests/emulation/gpu_model.h"

namespace sluice {

namespace {

using emulation::Gate;
using Bytes = std::vector<std::byte>;

struct Collective {
  std::string call;         // as the first rank made it
  std::vector<Bytes> sent;  // by rank
  std::vector<Gate> done;
  int arrived = 0;
};

struct Message {  // from one rank to another
  Bytes bytes;
  uint64_t bytes_sent = 0, bytes_wanted = 0;
  uint64_t collectives_sent = 0, collectives_wanted = 0;  // before this message
  bool sent = false, wanted = false;
  Gate sender = emulation::make_gate(), receiver = emulation::make_gate();
};

struct World {
  explicit World(int ranks) : size(ranks) {}
  Collective& collective(uint64_t number) {
    while (collectives.size() <= number) {
      Collective& c = collectives.emplace_back();
      c.sent.resize(static_cast<size_t>(size));
      for (int rank = 0; rank < size; ++rank) c.done.push_back(emulation::make_gate());
    }
    return collectives[number];
  }
  Message& message(int from, int to, uint64_t number) {
    std::deque<Message>& mail = messages[{from, to}];
    while (mail.size() <= number) mail.emplace_back();
    return mail[number];
  }

  const int size;
  std::mutex mutex;             // guards what follows; never taken while the GPUs' lock is held
  std::map<int, int> ordinals;  // by rank that has joined
  int finalized = 0;
  std::deque<Collective> collectives;  // in order, the same on all ranks
  std::map<std::pair<int, int>, std::deque<Message>> messages;
};

void meet(const Message& m) {
  if (!m.sent || !m.wanted) return;
  CHECK(m.bytes_sent == m.bytes_wanted, "NCCL: what is received has another length than what is sent");
  CHECK(m.collectives_sent == m.collectives_wanted, "NCCL: ranks make their calls in different orders");
  emulation::open(m.sender);
  emulation::open(m.receiver);
}

}  // namespace

// A rank's part of a communicator. It stays until the process ends, so that a use after its end is noticed.
struct ncclComm {
  enum class State { joining, ready, finalizing, finalized, gone };
  std::shared_ptr<World> world;
  int rank = 0, ordinal = 0;
  State state = State::joining;
  uint64_t collectives = 0;              // calls so far
  std::map<int, uint64_t> sent, wanted;  // messages so far, by the other rank
  std::function<void()> pending;         // enqueues what was asked for last
  int looks = 0;                         // at the result, until `pending` is called
  int failed = NcclApi::kSuccess;
  std::vector<Gate> gates;  // that its streams wait for
  void* memory = nullptr;
};

namespace {

struct PairCall {
  ncclComm* rank;
  bool sends;
  void* data;
  uint64_t bytes;
  int other;
  cudaStream_t stream;
};

// The library's state, one for the process.
struct Library {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> worlds;
  std::deque<ncclComm> ranks;
  uint64_t ids = 0;
};
Library& library() {
  static Library instance;
  return instance;
}

thread_local int group_depth = 0;
thread_local std::vector<PairCall> group;

void check_usable(const ncclComm& c) {
  CHECK(c.state != ncclComm::State::gone, "NCCL: a use of a communicator that was aborted or destroyed");
  CHECK(c.state == ncclComm::State::ready, "NCCL: a call on a communicator that is not ready");
  CHECK(!c.pending, "NCCL: a call before the one before was settled");
  CHECK(emulation::chosen() == c.ordinal, "NCCL: a call on another GPU than the rank's");
}

void check_memory(const void* data, uint64_t bytes) {
  CHECK(bytes == 0 || emulation::is_device_memory(data, bytes), "NCCL: memory that is not the GPU's");
}

void must(cudaError_t result) {
  CHECK(result == cudaSuccess || emulation::lost() != cudaSuccess, "NCCL: a stream of another GPU");
}

// Enqueues `hand_over`, a wait for each gate, and `fetch`. Neither function is called once the rank is gone.
void enqueue(ncclComm& c, cudaStream_t stream, const std::vector<Gate>& gates,
             const std::function<void()>& hand_over, const std::function<void()>& fetch) {
  const auto unless_gone = [&c](const std::function<void()>& work) {
    return [&c, work] {
      const std::lock_guard lock(c.world->mutex);
      if (c.state != ncclComm::State::gone) work();
    };
  };
  must(emulation::enqueue(stream, unless_gone(hand_over)));
  for (const Gate& gate : gates) {
    must(emulation::wait_for(stream, gate));
    c.gates.push_back(gate);
  }
  must(emulation::enqueue(stream, unless_gone(fetch)));
}

int begin(ncclComm& c, cudaStream_t stream, const std::function<void()>& enqueues) {
  if (emulation::count_nccl_call() == emulation::current().nccl_call_that_fails) {
    c.failed = NcclApi::kRemoteError;
    c.pending = [&c, stream] {
      c.gates.push_back(emulation::make_gate());
      must(emulation::wait_for(stream, c.gates.back()));
    };
  } else {
    c.pending = enqueues;
  }
  c.looks = 1 + static_cast<int>(c.collectives + static_cast<uint64_t>(c.rank)) % 3;
  return NcclApi::kInProgress;
}

int collective(ncclComm& c, const std::string& call, const void* from, uint64_t bytes, cudaStream_t stream,
               const std::function<void(Collective&)>& fetch) {
  CHECK(group_depth == 0, "NCCL: the stand-in has no collectives in groups");
  check_usable(c);
  check_memory(from, bytes);
  const uint64_t number = c.collectives++;
  return begin(c, stream, [&c, call, from, bytes, stream, fetch, number] {
    World& world = *c.world;
    const auto rank = static_cast<size_t>(c.rank);
    Gate done;
    {
      const std::lock_guard lock(world.mutex);
      Collective& together = world.collective(number);
      if (together.call.empty()) together.call = call;
      CHECK(together.call == call, "NCCL: ranks make different calls: " + together.call + ", " + call);
      done = together.done[rank];
    }
    const auto hand_over = [&world, number, rank, from, bytes] {
      Collective& together = world.collective(number);
      const auto* data = static_cast<const std::byte*>(from);
      together.sent[rank].assign(data, data + bytes);
      if (++together.arrived == world.size)
        for (const Gate& gate : together.done) emulation::open(gate);
    };
    enqueue(c, stream, {done}, hand_over, [&world, number, fetch] { fetch(world.collective(number)); });
  });
}

// All calls of one rank's group. What is sent is handed over, and what is wanted is announced, before the
// stream waits for any of it.
int pair_calls(const std::vector<PairCall>& calls) {
  ncclComm& c = *calls.front().rank;
  check_usable(c);
  struct Part {
    PairCall call;
    uint64_t number;
  };
  std::vector<Part> parts;
  for (const PairCall& call : calls) {
    CHECK(call.rank == &c, "NCCL: a group of several ranks");
    CHECK(call.stream == calls.front().stream, "NCCL: a group of several streams");
    check_memory(call.data, call.bytes);
    parts.push_back({call, (call.sends ? c.sent : c.wanted)[call.other]++});
  }
  return begin(c, calls.front().stream, [&c, parts] {
    World& world = *c.world;
    const auto message = [&world, &c](const Part& p) -> Message& {
      return p.call.sends ? world.message(c.rank, p.call.other, p.number)
                          : world.message(p.call.other, c.rank, p.number);
    };
    std::vector<Gate> gates;
    {
      const std::lock_guard lock(world.mutex);
      for (const Part& p : parts) gates.push_back(p.call.sends ? message(p).sender : message(p).receiver);
    }
    const auto hand_over = [parts, message, before = c.collectives] {
      for (const Part& p : parts) {
        Message& m = message(p);
        if (p.call.sends) {
          const auto* data = static_cast<const std::byte*>(p.call.data);
          m.bytes.assign(data, data + p.call.bytes);
          m.sent = true, m.bytes_sent = p.call.bytes, m.collectives_sent = before;
        } else {
          m.wanted = true, m.bytes_wanted = p.call.bytes, m.collectives_wanted = before;
        }
        meet(m);
      }
    };
    enqueue(c, parts.front().call.stream, gates, hand_over, [parts, message] {
      for (const Part& p : parts)
        if (!p.call.sends) std::memcpy(p.call.data, message(p).bytes.data(), p.call.bytes);
    });
  });
}

int pair_call(const PairCall& call) {
  check_usable(*call.rank);
  if (group_depth == 0) return pair_calls({call});
  group.push_back(call);
  return NcclApi::kSuccess;
}

// kInProgress until all ranks have joined.
int joined(ncclComm& c) {
  const std::lock_guard lock(c.world->mutex);
  if (c.world->ordinals.size() < static_cast<size_t>(c.world->size)) return NcclApi::kInProgress;
  std::set<int> gpus;
  for (const auto& [rank, ordinal] : c.world->ordinals) gpus.insert(ordinal);
  if (gpus.size() < c.world->ordinals.size()) return c.failed = NcclApi::kInvalidUsage;
  const uint64_t bytes = emulation::current().nccl_bytes;
  if (bytes > 0) CHECK(cudaMalloc(&c.memory, bytes) == cudaSuccess, "NCCL: no memory");
  c.state = ncclComm::State::ready;
  return NcclApi::kSuccess;
}

void leave(ncclComm& c) {
  {
    const std::lock_guard lock(c.world->mutex);
    c.state = ncclComm::State::gone;
  }
  for (const Gate& gate : c.gates) emulation::open(gate);
  if (c.memory) (void)cudaFree(std::exchange(c.memory, nullptr));
}

// ---- The library's functions.

int get_unique_id(NcclApi::UniqueId* id) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  std::snprintf(id->bytes, sizeof id->bytes, "%d:%llu", static_cast<int>(getpid()),
                static_cast<unsigned long long>(++all.ids));
  return NcclApi::kSuccess;
}

int init_rank(ncclComm** made, int ranks, NcclApi::UniqueId id, int rank, NcclApi::Config* config) {
  CHECK(config->size == sizeof *config && config->magic == 0xcafebeef, "NCCL: not a configuration");
  CHECK(config->blocking == 0, "NCCL: the stand-in's communicators are non-blocking");
  if (std::to_string(getpid()) != std::string(id.bytes, std::strchr(id.bytes, ':')))
    return NcclApi::kSystemError;  // no network leads out of this process
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<World>& world = all.worlds[id.bytes];
  if (!world) world = std::make_shared<World>(ranks);
  ncclComm& c = all.ranks.emplace_back();
  c.world = world, c.rank = rank, c.ordinal = emulation::chosen();
  const std::lock_guard world_lock(world->mutex);
  CHECK(ranks == world->size && rank >= 0 && rank < ranks, "NCCL: ranks disagree");
  if (rank == emulation::current().nccl_rank_that_cannot_join)
    c.failed = NcclApi::kSystemError;
  else
    CHECK(world->ordinals.emplace(rank, c.ordinal).second, "NCCL: a rank that is there already");
  *made = &c;
  return NcclApi::kInProgress;
}

int get_async_error(ncclComm* c, int* result) {
  CHECK(c->state != ncclComm::State::gone, "NCCL: a look at what was aborted or destroyed");
  *result = NcclApi::kSuccess;
  if (c->state == ncclComm::State::joining) {
    *result = c->failed == NcclApi::kSuccess ? joined(*c) : c->failed;
  } else if (c->state == ncclComm::State::finalizing) {
    const std::lock_guard lock(c->world->mutex);
    if (c->world->finalized < c->world->size)
      *result = NcclApi::kInProgress;
    else
      c->state = ncclComm::State::finalized;
  } else if (c->pending && --c->looks > 0) {
    *result = NcclApi::kInProgress;
  } else if (c->pending) {
    std::exchange(c->pending, nullptr)();
  } else {
    *result = c->failed;
  }
  return NcclApi::kSuccess;
}

int finalize(ncclComm* c) {
  CHECK(group_depth == 0, "NCCL: a group that was not ended");
  check_usable(*c);
  const std::lock_guard lock(c->world->mutex);
  c->state = ncclComm::State::finalizing;
  ++c->world->finalized;
  return NcclApi::kInProgress;
}

int destroy(ncclComm* c) {
  CHECK(c->state == ncclComm::State::finalized, "NCCL: what is destroyed was not finalized");
  leave(*c);
  return NcclApi::kSuccess;
}

int abort_rank(ncclComm* c) {
  CHECK(c->state != ncclComm::State::gone, "NCCL: a second end of a communicator");
  CHECK(group_depth == 0, "NCCL: a group that was not ended");
  leave(*c);
  return NcclApi::kSuccess;
}

int group_end() {
  CHECK(group_depth > 0, "NCCL: a group that was not started");
  if (--group_depth > 0 || group.empty()) return NcclApi::kSuccess;
  return pair_calls(std::exchange(group, {}));
}

int all_gather(const void* part, void* all, size_t bytes, int type, ncclComm* c, void* stream) {
  CHECK(type == NcclApi::kBytes, "NCCL: a type that the stand-in does not know");
  check_memory(all, bytes * static_cast<size_t>(c->world->size));
  const auto fetch = [all](Collective& together) {
    auto* to = static_cast<std::byte*>(all);
    for (const Bytes& sent : together.sent) {
      std::memcpy(to, sent.data(), sent.size());
      to += sent.size();
    }
  };
  return collective(*c, "all_gather of " + std::to_string(bytes), part, bytes,
                    static_cast<cudaStream_t>(stream), fetch);
}

int broadcast(const void* from, void* to, size_t bytes, int type, int root, ncclComm* c, void* stream) {
  CHECK(type == NcclApi::kBytes, "NCCL: a type that the stand-in does not know");
  check_memory(to, bytes);
  const auto fetch = [to, root](Collective& together) {
    const Bytes& sent = together.sent[static_cast<size_t>(root)];
    std::memcpy(to, sent.data(), sent.size());
  };
  return collective(*c, "broadcast of " + std::to_string(bytes) + " from " + std::to_string(root), from,
                    bytes, static_cast<cudaStream_t>(stream), fetch);
}

int send(const void* data, size_t bytes, int, int to, ncclComm* c, void* stream) {
  return pair_call({c, true, const_cast<void*>(data), bytes, to, static_cast<cudaStream_t>(stream)});
}
int receive(void* data, size_t bytes, int, int from, ncclComm* c, void* stream) {
  return pair_call({c, false, data, bytes, from, static_cast<cudaStream_t>(stream)});
}

const char* error_text(int result) {
  switch (result) {
    case NcclApi::kSystemError:
      return "system error";
    case NcclApi::kInvalidUsage:
      return "invalid usage";
    case NcclApi::kRemoteError:
      return "remote error";
    default:
      return "an error that nothing here returns";
  }
}

}  // namespace

Known<NcclApi> open_nccl() {
  if (emulation::current().nccl_version == 0) return {{}, "the emulated machine has none"};
  NcclApi api;
  api.file = "emulated";
  api.ncclGetVersion = [](int* version) {
    *version = emulation::current().nccl_version;
    return static_cast<int>(NcclApi::kSuccess);
  };
  api.ncclGetErrorString = error_text;
  api.ncclGetLastError = [](ncclComm*) { return ""; };
  api.ncclGetUniqueId = get_unique_id;
  api.ncclCommInitRankConfig = init_rank;
  api.ncclCommGetAsyncError = get_async_error;
  api.ncclCommFinalize = finalize;
  api.ncclCommDestroy = destroy;
  api.ncclCommAbort = abort_rank;
  api.ncclGroupStart = [] {
    ++group_depth;
    return static_cast<int>(NcclApi::kSuccess);
  };
  api.ncclGroupEnd = group_end;
  api.ncclAllGather = all_gather;
  api.ncclBroadcast = broadcast;
  api.ncclSend = send;
  api.ncclRecv = receive;
  return {api, ""};
}

}  // namespace sluice
