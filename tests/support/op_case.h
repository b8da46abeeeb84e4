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
  // Lengths of the documents, over the rows of all sequences; again from the first after the last one. A
  // sequence's end ends a document. Empty: every sequence is one.
  std::vector<int64_t> documents = {};
  // With a context (OpAttributes): tokens of each sequence's document before its rows, and idle rows at the
  // end of each sequence.
  std::vector<int64_t> before = {};
  int64_t idle = 0;
  // With routing (OpAttributes::routing): which rows choose the expert of an op of one expert.
  enum class Crowd { some, all, none } crowd = Crowd::some;
};

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }  // googletest's name for it

}  // namespace sluice
