// One case of an op: its kind, attributes and shapes, and what its operands' values are like.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "engine/graph/op.h"

namespace sluice {

struct OpCase {
  std::string name;
  OpKind kind;
  OpAttributes attributes;
  std::vector<Shape> inputs, parameters;
  double scale = 1, shift = 0;  // inputs are uniform in shift +- scale
  bool large = false;           // only compared with the reference device and over thread counts
  // Lengths of the documents, over the rows of all sequences. The first length follows again after the last
  // one. A document also ends where its sequence ends. If this is empty, every sequence is one document.
  std::vector<int64_t> documents = {};
  // For ops with a context (OpAttributes). `before` says, for each sequence, how many tokens of its document
  // come before its rows. The last `idle` rows of every sequence are idle.
  std::vector<int64_t> before = {};
  int64_t idle = 0;
  // Which rows choose the expert, for an op of one expert (OpAttributes::routing).
  enum class Crowd { some, all, none } crowd = Crowd::some;
};

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }  // googletest's name for it

}  // namespace sluice
