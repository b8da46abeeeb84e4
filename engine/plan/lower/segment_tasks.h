// Inside of lower: forwards and backwards of segment uses as tasks of a body. For the files of lower only.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/plan/lower/body_builder.h"
#include "engine/plan/lower/buffers.h"
#include "engine/plan/lower/lower.h"

namespace sluice {

struct Wave {  // its place among the waves of a step
  bool first = true, last = true;
};

// Adds tasks to bodies; refers to the data of the lowering. Makes the buffers of workspaces as they are
// needed.
class SegmentTasks {
 public:
  // `stand_ins`: by group, the group whose buffers are used in its place; empty: each group uses its own.
  SegmentTasks(const Model& model, const GroupUses& uses, const Lowering& lowering,
               const SliceBuffers& buffers, const std::vector<uint32_t>& stand_ins, Program& program)
      : model_(model),
        uses_(uses),
        out_(lowering),
        buffers_(buffers),
        stand_ins_(stand_ins),
        program_(program) {}

  // Add the task of segment use `u` with micro-batch `m`.
  void forward(BodyBuilder& body, uint32_t u, uint32_t m, Recompute level, Wave wave);
  void backward(BodyBuilder& body, uint32_t u, uint32_t m, Wave wave);

 private:
  const SegmentUse& use(uint32_t u) const {
    return model_.layers[out_.uses[u].layer].segments[out_.uses[u].position];
  }
  const Segment& segment(uint32_t u) const { return model_.segments[use(u).segment]; }
  const SegmentPlan& plan(uint32_t u) const { return out_.plans()[out_.uses[u].plan]; }
  const GroupBuffers& group(uint32_t g) const { return out_.groups[stand_ins_.empty() ? g : stand_ins_[g]]; }

  Task& task(BodyBuilder& body, uint32_t u, uint32_t m, Pass pass);
  void add_workspace(BodyBuilder& body, Task& t, uint64_t bytes);
  void add_cost(Task& t, const PassPlan& pass, double part);
  void add_input(BodyBuilder& body, Task& t, uint32_t u, size_t input, uint32_t m);
  void add_output(BodyBuilder& body, Task& t, uint32_t a, uint32_t m, Access access);
  void add_gradients(BodyBuilder& body, Task& t, uint32_t u, uint32_t m, Wave wave);

  const Model& model_;
  const GroupUses& uses_;
  const Lowering& out_;
  const SliceBuffers& buffers_;
  const std::vector<uint32_t>& stand_ins_;
  Program& program_;
  // Keys are whether the task is a collective, which may run in another tier, and bytes.
  std::map<std::pair<bool, uint64_t>, BufferId> workspaces_;
  // By pass and PickedUse::part: index into Program::passes.
  std::map<std::pair<const PassPlan*, double>, uint32_t> passes_;
};

}  // namespace sluice
