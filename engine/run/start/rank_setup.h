// What a rank has before it plans: its share of the machine, its device, its connection to the other ranks,
// and its budgets. Only the first rank prints. Every rank of `train` and `profile` makes a RankSetup.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/affinity.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/plan_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/rank_share.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_start.h"
#include "engine/run/start/say.h"
#include "engine/run/start/text_start.h"
#include "gpu/device.h"

namespace sluice {

// What data the model of a run is made for.
DataUse data_use(const Options& options, const RunStart& start, const RunData& data);

// The thread that makes a RankSetup is bound to the rank's processors until it destroys the RankSetup.
class RankSetup {
 public:
  // `samples`: nullptr: the run has none. The first rank settles what --zero and --shard-weights leave open.
  RankSetup(Options given, const ModelSource& source, const DataUse& data,
            std::shared_ptr<const SamplePrompts> samples, const Ranks& all, Say say);

  Options& options() { return options_; }  // with this rank's share of memory
  const Ranks& ranks() const { return ranks_; }
  Device& device() { return *device_; }
  Budgets& budgets() { return budgets_; }
  PlanRequest request() const { return request(options_); }
  PlanRequest request(const Options& options) const;  // with these budgets, and on this device
  // Plans and verifies, with the shape of the first rank's plan (planning.h). Throws infeasible_error().
  Plan plan();

 private:
  Budgets budgets_now() const;
  void settle_budgets();
  void say_notes(const std::vector<std::string>& notes) const;

  Options options_;
  Ranks ranks_;
  const ModelSource source_;
  const DataUse data_;
  const std::shared_ptr<const SamplePrompts> samples_;
  const Say say_;
  std::optional<Bound> bound_;
  std::unique_ptr<Device> device_;
  AcceleratorRanks connected_;  // takes device memory, which the budgets count, so it is made before them
  Budgets budgets_;
  std::optional<Plan> first_plan_;  // where settle_budgets() had to make one
};

}  // namespace sluice
