#include "engine/program/low_rank.h"

#include <algorithm>

namespace sluice {

LowRankLayout low_rank_layout(const Group& group, uint32_t rank, const std::vector<bool>& whole) {
  LowRankLayout out;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Parameter& p = group.parameters[i];
    const auto elements = static_cast<uint64_t>(element_count(p.shape));
    if (elements == 0) continue;
    const auto rows = static_cast<uint64_t>(p.shape.empty() ? 1 : p.shape.front());
    const uint64_t columns = elements / rows;
    const auto most = static_cast<uint32_t>(std::min<uint64_t>({rank, rows, columns}));
    if (most * (rows + columns) >= elements || (!whole.empty() && whole[i])) {
      out.plain.push_back({p.offset, elements, out.left});
      out.left += elements;
      continue;
    }
    out.matrices.push_back({p.offset, rows, columns, most, out.left, out.right});
    out.left += rows * most;
    out.right += most * columns;
  }
  return out;
}

std::vector<std::vector<bool>> high_rank_parameters(const Model& model) {
  std::vector<std::vector<bool>> high;
  for (const Group& group : model.groups) high.emplace_back(group.parameters.size());
  for (const Layer& layer : model.layers)
    for (const SegmentUse& use : layer.segments) {
      const Segment& segment = model.segments[use.segment];
      for (const Op& op : segment.ops)
        for (const uint32_t p : op.parameters) {
          const SegmentParameter& parameter = segment.parameters[p];
          if (segment.loss || op_rule(op.kind).looks_up_rows)
            high[use.groups[parameter.slot]][parameter.parameter] = true;
        }
    }
  return high;
}

}  // namespace sluice
