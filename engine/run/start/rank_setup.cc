#include "engine/run/start/rank_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/sharing.h"

namespace sluice {

namespace {

// Says what moves bytes between ranks. `reason`: a clause why accelerators do not do it themselves. It is
// empty if they do, or if there are none.
std::string ranks_text(const Ranks& ranks, const std::string& reason) {
  const Communicator& used = ranks.device ? *ranks.device : *ranks.lane;
  return "  ranks: " + std::to_string(ranks.size()) + ", exchanging by " + used.transport() +
         (reason.empty() ? "" : " (not by NCCL: " + reason + ")") + "\n";
}

// The first rank settles what is left open, for all ranks. Ranks for which nothing is open take part too,
// since the others wait for them.
void settle_for_all(RankOptions& options, const Ranks& ranks, PlanRequest mine_to_plan,
                    const Budgets& budgets, const Say& say) {
  struct {
    int64_t zero;
    WeightShards weights;
  } settled{};
  if (ranks.is_first()) {
    RankOptions mine = options;
    const std::string sentence = settle_sharing(mine, std::move(mine_to_plan), budgets);
    if (!sentence.empty()) say(sentence + "\n");
    settled = {*mine.zero, *mine.shard_weights};
  }
  settled = ranks.all(settled).front();
  if (!options.zero) options.zero = settled.zero;
  if (!options.shard_weights) options.shard_weights = settled.weights;
}

}  // namespace

DataUse data_use(const Options& options, const RunStart& start, const RunData& data) {
  return {rows_have_documents(options, text_directory(start)), data.validation != nullptr};
}

RankSetup::RankSetup(Options given, const ModelSource& source, const DataUse& data,
                     std::shared_ptr<const SamplePrompts> samples, const Ranks& all, Say say)
    : options_(std::move(given)),
      ranks_(all),
      source_(source),
      data_(data),
      samples_(std::move(samples)),
      say_(std::move(say)) {
  options_.ranks.here = ranks_.rank();
  const RankShare share = rank_share(options_.memory, ranks_);
  options_.memory = share.memory;
  options_.ranks.per_node = ranks_together(ranks_.all(ranks_.first_here));
  if (share.processors) bound_.emplace(*share.processors);
  device_ = make_device(options_.memory, resolve_threads(options_.memory));
  connected_ = connect_accelerators(*device_, ranks_);
  ranks_.device = connected_.communicator.get();
  if (ranks_.size() > 1 && ranks_.is_first()) say_(ranks_text(ranks_, connected_.reason));
  if (const std::string note = experts_over_note(options_); !note.empty() && ranks_.is_first())
    say_(note + "\n");
  budgets_ = budgets_now();
  if (ranks_.is_first()) {
    say_notes(share.notes);
    say_notes(budgets_.notes);
  }
  // Every rank makes the request: if making it throws, it throws on all ranks.
  settle_for_all(options_.ranks, ranks_, request(), budgets_, say_);
  settle_budgets();
}

Budgets RankSetup::budgets_now() const {
  Budgets budgets = resolve_shared_budgets(options_.memory, ranks_, accelerator_use(*device_));
  budgets.reserve_table(table_bytes_with(source_, samples_));
  return budgets;
}

// If the budgets of the run that goes on cannot work here, for example on fewer ranks, all of them become
// auto. All ranks must agree on that, so it is settled before any rank plans on its own.
void RankSetup::settle_budgets() {
  MemoryOptions& memory = options_.memory;
  Size* const sizes[] = {&memory.gpu, &memory.host, &memory.nvme};
  const auto is_of_run = [](const Size* size) { return size->of_run && size->kind == Size::Kind::bytes; };
  std::string why;
  if (std::any_of(std::begin(sizes), std::end(sizes), is_of_run)) {
    try {
      first_plan_ = plan_or_throw(request(), budgets_);
    } catch (const Error& error) {
      if (error.code() != ExitCode::infeasible) throw;
      why = error.what();
    }
  }
  if (ranks_.sum<int>(!why.empty()) == 0) return;
  first_plan_.reset();
  for (Size* size : sizes)
    if (is_of_run(size)) *size = {};
  budgets_ = budgets_now();
  if (!ranks_.is_first()) return;
  say_notes({"The budgets of the run do not suffice here, so auto holds instead." +
             (why.empty() ? "" : " " + why)});
  say_notes(budgets_.notes);
}

Plan RankSetup::plan() {
  Plan own = first_plan_ ? *std::exchange(first_plan_, std::nullopt) : plan_or_throw(request(), budgets_);
  return plan_alike(request(), budgets_, ranks_, std::move(own));
}

void RankSetup::say_notes(const std::vector<std::string>& notes) const {
  for (const std::string& note : notes) say_(note + "\n");
}

PlanRequest RankSetup::request(const Options& options) const {
  return plan_request(options, source_.config, budgets_, needs_of(*device_), data_, ranks_.device != nullptr,
                      sizes_of(samples_));
}

}  // namespace sluice
