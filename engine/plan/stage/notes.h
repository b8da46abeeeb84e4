// Notes of what keeps each fetch from an earlier place in the body's list. They are made for `plan --why`
// alone, and cost other plans no time.
//
// Positions are given as tasks: "before task t" is the place in the body's list in front of that task. They
// keep their meaning when the tiers below are staged, which inserts transfers only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

// Why a fetch does not stand earlier in the list.
enum class FetchBound : uint8_t {
  begin,    // the body begins there
  write,    // its content is made there
  address,  // other bytes lie at its address until there
  order,    // a fetch that is needed earlier stands there, and fetches keep that order
  share,    // its allocation begins there, with the use of another piece
  lead,     // none of these: in the arrangement that needs least memory, fetches of transient buffers are not
            // moved up
};

struct FetchNote {
  TierId tier = 0;  // into which
  BufferId buffer = 0;
  uint8_t back = 0;
  uint32_t piece = 0;
  uint32_t begins = kNoTask;  // it stands before this task; kNoTask: at the end
  uint32_t needed = kNoTask;  // its first use is this task, or a transfer that stands before it
  uint32_t lead = 0;          // cost units of tasks that the lead was to cover
  bool lead_cut = false;      // the tier had no room for all of the lead
  FetchBound bound = FetchBound::begin;
  BufferId other = 0;  // address: whose bytes; order: which buffer's fetch
};

// Notes on the buffers that are asked for, by body. For each tier, they are in the order of the body's list.
struct FetchNotes {
  std::vector<bool> wanted;  // by buffer
  std::vector<std::vector<FetchNote>> bodies;
};

}  // namespace sluice
