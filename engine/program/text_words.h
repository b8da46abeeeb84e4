// Words of the program's text form, shared by printer and parser. One row a line, tokens split by blanks:
//   sluice program 1
//   tier NAME capacity BYTES alignment BYTES [file]
//   lane NAME [overlapping]
//   link FROM TO LANE alignment BYTES
//   unit KIND LANE TIER
//   processes NAME count RANKS stride RANKS
//   pass (OP flops N bytes N)*
//   ring NAME [slots COUNT]
//   buffer NAME CLASS [permanent] home TIER[+OFFSET] [ring RING] [stride BYTES] [empty_in STATE]...
//     [bank BUFFER index BUFFER place NUMBER of PLACES] pieces BYTES[xCOUNT],...
//   arena BYTES...
//   body NAME START -> END [advance 0|1...] [peak BYTES...] [after BODY...]
//   tasks BODY, then rows (all bodies stand before the first tasks):
//     NUMBER KIND SUBJECT/MICRO_BATCH [recompute LEVEL] [among PROCESSES] flops F bytes BYTES [pass INDEX]
//       {read|write|add [by_host] OPERAND [as ROLE]}...
//   instructions BODY, then rows:
//     NUMBER LANE:ORDINAL ACTION {after [BODY/]LANE:COUNT}...
//     ACTION: copy OPERAND[>TARGET_VERSION] TIER+OFFSET -> TIER+OFFSET            a transfer
//             run TASK [at TIER+OFFSET...]                                        with the task's operands
//             raw TASK|- OPERANDS [at TIER+OFFSET...]     anything else, with operands as in a task's row
//   OPERAND: BUFFER[~BACK][PIECES]@VERSION; PIECES: [first:last], [first], or nothing for all
// Names keep letters, digits and _ . -; other bytes are %XX; the empty name is %. A name that is not unique
// in its table is referred to as #INDEX.
#pragma once

#include <cstddef>
#include <string>

#include "engine/program/program.h"

namespace sluice {

inline constexpr const char* kTextHeader = "sluice program 1";
inline constexpr const char* kAccessWords[] = {"read", "write", "add"};
inline constexpr const char* kByHostWord = "by_host";
inline constexpr const char* kRoleWord = "as";
inline constexpr size_t kBufferClasses = 7;

// The word for a state, different for every state (docs/program.md): `empty`, or [shared_] and clean, pending
// or guessed. Between waves the last three are partial, pending_partial and guessed_partial.
std::string state_word(BodyState state);

}  // namespace sluice
