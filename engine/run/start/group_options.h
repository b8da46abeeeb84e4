// --group-options: options of the optimizer for some of the parameters. Documented in docs/groups.md.
//
// An entry is WHAT:OPTION=X[,OPTION=X...]. WHAT is experts, routers, embeddings, norms or head, by the ops
// that use the parameters, or a pattern of their names in which * stands for any characters and ? for one. Of
// entries with the same option for a parameter, the last one counts. Where experts are divided over ranks, a
// pattern names all or none of the experts that have the same place on their ranks.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace sluice {

// Sets what the optimizer does with the model's parameters. A group whose parameters are all frozen is not
// trained. Throws Error(usage) for an entry that cannot be read, names nothing that is trained, or names
// experts of some ranks alone; and where nothing is left to train.
void apply_group_options(const std::vector<std::string>& entries, Model& model);

}  // namespace sluice
