// Which tensors of a parameter group's gradient PowerSGD replaces by two factors, and where the factors lie
// in the group's two factor buffers (Vogels, Karimireddy, Jaggi 2019, "PowerSGD: practical low-rank gradient
// compression for distributed optimization", arXiv:1905.13727).
//
// A tensor of two or more dimensions is a matrix of its first dimension by the others. It becomes left (rows
// x rank, row by row) times right (rank x columns, row by row). A tensor that would not get smaller is sent
// as it is, in fp32, in the left buffer. So are embeddings and the parameters of the loss, whose gradients
// are of high rank (Ramesh et al. 2021, arXiv:2102.12092, appendix D). The layout depends only on the model
// and on the matrix rank that was asked for, so it is the same on all ranks of the run.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace sluice {

struct LowRankMatrix {
  uint64_t offset = 0, rows = 0, columns = 0;  // elements of the group's flat buffer
  uint32_t rank = 0;
  uint64_t left = 0, right = 0;  // first elements in the factor buffers
  uint64_t elements() const { return rows * columns; }
};

struct PlainRange {
  uint64_t offset = 0, elements = 0;
  uint64_t left = 0;
};

struct LowRankLayout {
  std::vector<LowRankMatrix> matrices;  // in order of offset, as are the plain ranges
  std::vector<PlainRange> plain;
  uint64_t left = 0, right = 0;  // elements of the factor buffers
};

// rank > 0. whole[p]: parameter p is not factored. An empty vector: every parameter may be factored.
LowRankLayout low_rank_layout(const Group& group, uint32_t rank, const std::vector<bool>& whole = {});

// By group and parameter: whether it is read by an op that looks up rows, or by the loss.
std::vector<std::vector<bool>> high_rank_parameters(const Model& model);

}  // namespace sluice
