// Sync: all waits of all bodies, derived in one pass from the byte ranges that instructions touch.
//
// 1. Each body alone: replay the list over a map of address ranges -> (last writer, readers since). Read
//    after write, write after read and write after write give a dependency per lane; on a lane whose
//    instructions overlap, also on itself.
// 2. Drop what is implied: by the lane's order, or by another wait's own knowledge (vector clocks over the
//    lanes).
// 3. For every legal pair of bodies: what a body touches before writing it itself depends on what the body
//    before left.
// Between two bodies only: no lane starts a body before every lane has completed the last but one.
#pragma once

#include "engine/program/program.h"

namespace sluice {

// Fills waits and waits_before of every instruction. All places must be final.
void synchronise(Program& program);

}  // namespace sluice
