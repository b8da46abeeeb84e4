// Golden plans: the task lists and whole programs of small models, as text. They show what a change of
// the planner changes.
#include "tests/support/golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "cpu_optim/optimizer.h"
#include "engine/verify/verify.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {
namespace {

// One row for each task: kind, subject, micro-batch, and operands as buffer[first:last], with = for write, +
// for add, ~ for an older ring slot.
std::string task_list(const Case& c) {
  constexpr const char* kAccess[] = {"", "=", "+"};
  std::string text;
  for (const Body& body : c.program.bodies) {
    text += "body " + body.name + "\n";
    for (const Task& t : body.tasks) {
      text += fmt::format("{} {}/{}", task_kind_name(t.kind), t.subject, t.slice);
      if (t.recompute != Recompute::none) text += fmt::format(" recompute {}", recompute_name(t.recompute));
      for (const Operand& o : t.operands) {
        const Buffer& b = c.program.buffers[o.buffer];
        text += " " + b.name + (o.back ? "~" : "");
        if (b.pieces() > 1) text += fmt::format("[{}:{}]", o.first, o.last);
        text += kAccess[static_cast<int>(o.access)];
      }
      text += "\n";
    }
  }
  return text;
}

struct Budget {
  Tiers tiers;
  uint32_t lead;
  uint64_t tenths;  // of the least
};

// Weights live in host memory, gradients and state as low as possible. Segments have all levels of
// recomputation in turn. Experts are divided over `ranks` ranks.
Case plan_case(const std::string& model, const Budget& budget, uint32_t ranks = 1) {
  Case c;
  ModelConfig config = config_from_name(model);
  config.mesh = Mesh({1, ranks}, ranks);
  c.model = build_model(config, DType::bf16, 1, 8);
  c.options.batch = 2;
  c.options.evaluate = true;
  for (const Layer& layer : c.model.layers)
    for (size_t s = 0; s < layer.segments.size(); ++s)
      c.options.recompute.push_back(kRecomputes[c.options.recompute.size() % kRecomputes.size()]);
  c.options.shard_elements = kFileElements;
  c.options.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  c.options.workspace_bytes = some_workspace;
  lower_case(c, machine_of(budget.tiers));
  const TierId memory = lowest_memory_tier(c.program.machine), lowest = lowest_tier(c.program.machine);
  for (const Buffer& b : c.program.buffers)
    c.arrangement.homes.push_back(b.kind == BufferClass::weights ? memory : lowest);
  c.arrangement.leads.assign(c.program.machine.tiers.size(), budget.lead);
  for (TierId t = 0; t < lowest; ++t) set_capacity(c, t, round_up(shrink(c, t) * budget.tenths / 10, 4096));
  EXPECT_FALSE(assemble(c.program, c.arrangement));
  EXPECT_TRUE(verify(c.program).empty());
  return c;
}

std::map<std::string, std::string> golden_texts() {
  std::map<std::string, std::string> texts;
  const std::pair<const char*, const char*> models[] = {
      {"gpt2", "gpt2:layers=2,width=16,heads=2,vocab=50,context=8"},
      {"llama", "llama:layers=2,width=16,heads=4,kv_heads=2,ffn=24,vocab=40,context=8,tied=false"},
      {"mixtral", "mixtral:layers=1,width=16,heads=2,kv_heads=2,ffn=8,vocab=40,context=8,experts=2,top=1"}};
  for (const auto& [name, model] : models) {
    const Case two = plan_case(model, {Tiers::host_nvme, 2, 15});
    texts[std::string(name) + ".tasks"] = task_list(two);
    texts[std::string(name) + ".two_tiers"] = to_text(two.program);
    texts[std::string(name) + ".three_tiers"] =
        to_text(plan_case(model, {Tiers::device_host_nvme, 1, 12}).program);
  }
  texts["mixtral.divided"] = to_text(plan_case(models[2].second, {Tiers::host_nvme, 1, 12}, 2).program);
  return texts;
}

TEST(PlanGolden, TasksAndPrograms) {
  for (const auto& [name, text] : golden_texts()) expect_golden(name, text);
}

TEST(PlanGolden, ExcerptShowsTheFirstDifference) {
  EXPECT_EQ(first_difference("a\nb\nc\nd\ne\n", "a\nb\nc\nd\nf\ng\n"),
            "@@ line 5 (5 lines wanted, 6 found) @@\n  b\n  c\n  d\n- e\n+ f\n+ g\n");
}

}  // namespace
}  // namespace sluice::testing
