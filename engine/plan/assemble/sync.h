// Synchronisation: all waits of all bodies, derived in one pass from the byte ranges that instructions touch.
//
// 1. Each body alone: replay the list over a map of address ranges -> (last writer, readers since). Each read
//    after write, write after read and write after write is a dependency on the lane of the earlier access,
//    if that is another lane. On a lane whose instructions overlap, an instruction may also depend on earlier
//    ones of its own lane.
// 2. Drop the waits that follow from the lane's order, or from what another wait implies (vector clocks over
//    the lanes).
// 3. For every legal pair of bodies: an access to bytes that the body has not written before depends on
//    accesses of the body before.
//
// Pairs are enough: no lane starts body n of a run before every lane has completed body n - 2.
#pragma once

#include "engine/program/program.h"

namespace sluice {

// Fills waits and waits_before of every instruction. All places must be final.
void synchronise(Program& program);

}  // namespace sluice
