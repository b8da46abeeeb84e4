// How unevenly predictions assume that tokens choose experts. A model as data says it by
// Routing::rows_over_mean; what is computed does not depend on it.
//
// In each layer with a mixture of E experts, of which a row chooses K, the imbalance is the number of rows of
// the expert that has most, over the mean of all: from 1 (all have equally many) to E / K (all rows choose
// it). Predictions assume that this expert is the one that the layer runs first, and divide all other rows
// equally among the others. Called by set-up code; pure functions.
#pragma once

#include "engine/graph/graph.h"

namespace sluice {

// The largest imbalance that is possible in a mixture that the model trains, or generates with if it is not
// trained: E / K, or less where an expert has a capacity; 0 if the model has no experts.
double most_imbalance(const Model& model);

// Predictions assume this imbalance: the largest of the mixtures that most_imbalance() counts; 0 if the model
// has no experts.
double assumed_imbalance(const Model& model);

// Assumes `imbalance` (at least 1) in every mixture, or the largest possible one where that is less. Where
// the assumed imbalance is not 1, the first expert of a layer gets a segment template of its own.
void assume_imbalance(Model& model, double imbalance);

}  // namespace sluice
