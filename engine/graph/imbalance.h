// How unevenly predictions assume that tokens choose experts. In the model, Routing::rows_over_mean has this
// assumption. What a run computes does not depend on it.
//
// In each layer with a mixture of E experts, of which a row chooses K, the imbalance is the number of rows of
// the expert with most rows, divided by the mean over all experts. It lies between 1 (all experts have
// equally many rows) and E / K (all rows choose that expert). Predictions assume that the expert with most
// rows is the one that the layer runs first, and divide all other rows equally among the others. Called by
// set-up code; pure functions.
#pragma once

#include "engine/graph/graph.h"

namespace sluice {

// The largest imbalance that any mixture of the model can have: E / K, or less where an expert has a
// capacity; 0 if the model has no experts. If the model is trained, only the mixtures that it trains count.
double most_imbalance(const Model& model);

// Predictions assume this imbalance: the largest of the mixtures that most_imbalance() counts; 0 if the model
// has no experts.
double assumed_imbalance(const Model& model);

// Assumes `imbalance` (at least 1) in every mixture, or the mixture's largest possible imbalance where that
// is less. Where the assumed imbalance is not 1, the first expert of a layer gets a segment template of its
// own.
void assume_imbalance(Model& model, double imbalance);

}  // namespace sluice
