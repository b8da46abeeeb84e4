// Batches of tokens, as bodies find them in ring slots, and the loss of validation batches. Callers: the
// trainer, and the verb that evaluates.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>

#include "engine/graph/draws.h"
#include "engine/run/execute/session.h"
#include "models/data/row_source.h"

namespace sluice {

// What ranks tell each other when they have read the tokens of a batch.
struct RowsRead {
  int64_t labels = 0;                // number of valid labels
  int64_t stopping = 0, failed = 0;  // ranks that were asked to stop; ranks that could not read
  RowsRead& operator+=(const RowsRead& other) {
    labels += other.labels, stopping += other.stopping, failed += other.failed;
    return *this;
  }
};

// Writes this rank's rows of a batch that begins at row `batch` into the next slots of kWaveRing, a slot for
// each wave. No more than one body may be in flight. Returns what all ranks found; `failure` gets what this
// rank's reading threw. `draws`: seed and step, for a model that draws random numbers.
RowsRead fill_all_rows(Session& session, RowSource& data, uint64_t batch, const Draws& draws, bool stopping,
                       std::exception_ptr& failure);

struct Evaluation {
  double loss = 0;                    // mean
  std::optional<double> router_loss;  // the routers' part of `loss`; none: the model has none
  int64_t labels = 0;                 // of which `loss` is the mean
  int64_t right = 0;  // labels whose logit is the largest; 0 unless the model's loss counts them
};

// The loss over the first `batches` validation batches, with current weights, by the `bodies` of the current
// phase (Lowering::phases). Requires that no update is pending (BodyState::clean). Returns nullopt if the
// evaluation was cut short, since `stop` was set or a rank could not read its data. On a rank that could not
// read, `failure` gets what reading threw.
std::optional<Evaluation> evaluate(Session& session, const BodyIds& bodies, RowSource& data, int64_t batches,
                                   const std::atomic<bool>& stop, std::exception_ptr& failure);

}  // namespace sluice
