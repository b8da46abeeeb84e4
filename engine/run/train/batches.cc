#include "engine/run/train/batches.h"

#include <algorithm>

namespace sluice {

namespace {

// Sequences of one rank's share of a batch.
uint64_t rows_of(const Plan& plan) {
  return static_cast<uint64_t>(plan.model.micro_batch) * plan.lowering.micro_batches();
}

// Returns the number of valid labels.
int64_t fill_rows(Session& session, RowSource& data, uint64_t batch, Draws draws) {
  const Model& model = session.plan().model;
  const Lowering& lowering = session.plan().lowering;
  CHECK(model.documents || !data.has_documents(), "attention would cross the borders of documents");
  const BufferId tokens = input_buffer(model, lowering, "tokens");
  const BufferId labels = input_buffer(model, lowering, "labels");
  const BufferId documents = model.documents ? input_buffer(model, lowering, "documents") : kNone;
  const BufferId draw_words = draws_numbers(model) ? input_buffer(model, lowering, "draws") : kNone;
  const Buffer& buffer = session.plan().program.buffers[tokens];
  const auto rows = static_cast<uint64_t>(model.micro_batch);
  uint64_t first = batch + session.data_rank() * rows_of(session.plan());
  int64_t valid = 0;
  for (uint32_t wave = 0; wave < lowering.waves; ++wave) {
    const uint64_t position = session.next_position(kWaveRing) + wave;
    std::byte* token_slot = session.runner().ring_slot(tokens, position);
    std::byte* label_slot = session.runner().ring_slot(labels, position);
    std::byte* document_slot = model.documents ? session.runner().ring_slot(documents, position) : nullptr;
    for (uint32_t m = 0; m < lowering.slices; ++m, first += rows) {
      auto* inputs = reinterpret_cast<int32_t*>(token_slot + buffer.cuts[m]);
      auto* targets = reinterpret_cast<int32_t*>(label_slot + buffer.cuts[m]);
      int32_t* begins = document_slot ? reinterpret_cast<int32_t*>(document_slot + buffer.cuts[m]) : nullptr;
      data.read(first, rows, inputs, targets, begins);
      if (draw_words != kNone) {
        draws.first_token = draws.step == 0 ? 0 : (first - batch) * static_cast<uint64_t>(model.sequence);
        std::ranges::copy(draws.words(),
                          reinterpret_cast<int32_t*>(session.runner().ring_slot(draw_words, position) +
                                                     session.plan().program.buffers[draw_words].cuts[m]));
      }
      valid += std::count_if(targets, targets + model.micro_batch * model.sequence,
                             [](int32_t t) { return !is_ignored(t); });
    }
  }
  return valid;
}

}  // namespace

RowsRead fill_all_rows(Session& session, RowSource& data, uint64_t batch, const Draws& draws, bool stopping,
                       std::exception_ptr& failure) {
  RowsRead mine{0, stopping, 0};
  try {
    const int64_t labels = fill_rows(session, data, batch, draws);
    if (session.counts_rows()) mine.labels = labels;
  } catch (...) {
    failure = std::current_exception();
    mine.failed = 1;
  }
  return session.ranks().sum(mine);
}

std::optional<Evaluation> evaluate(Session& session, const BodyIds& bodies, RowSource& data, int64_t batches,
                                   const std::atomic<bool>& stop, std::exception_ptr& failure) {
  const Lowering& lowering = session.plan().lowering;
  const uint64_t rows = rows_of(session.plan()) * lowering.mesh.data_ranks();
  StepScalars::Loss mine{};
  int64_t valid = 0, issued = 0;
  uint64_t last = 0, positions[2] = {0, 0};  // the last body's ticket; the last two batches' positions
  const auto read = [&](int64_t batch) {
    session.check();
    mine += *reinterpret_cast<const StepScalars::Loss*>(
        session.runner().ring_slot(lowering.validation_loss, positions[batch % 2]));
  };
  for (; issued < batches; ++issued) {
    session.executor().make_room();  // so the batch before the last one is done
    if (issued >= 2) read(issued - 2);
    const uint64_t position = session.next_position(kValidationRing);
    const RowsRead got =
        fill_all_rows(session, data, static_cast<uint64_t>(issued) * rows, {}, stop, failure);
    if (got.failed + got.stopping > 0) break;
    valid += got.labels;
    positions[issued % 2] = position;
    for (uint32_t wave = 0; wave < lowering.waves; ++wave)
      last = session.issue(wave == 0 ? *bodies.evaluate : *bodies.evaluate_more);
  }
  if (issued > 0) session.executor().wait(last);
  for (int64_t b = std::max<int64_t>(0, issued - 2); b < issued; ++b) read(b);
  if (issued < batches) return std::nullopt;
  const auto labels = static_cast<double>(std::max<int64_t>(valid, 1));
  const StepScalars::Loss all = session.sum_of_rows(mine);
  Evaluation found{.loss = all.sum / labels, .labels = valid, .right = static_cast<int64_t>(all.right)};
  if (has_router_loss(session.plan().model)) found.router_loss = all.of_routers / labels;
  return found;
}

}  // namespace sluice
