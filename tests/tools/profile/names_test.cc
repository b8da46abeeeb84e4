// The names in reports: every buffer that a planner makes has one explanation, in docs/program.md.
#include "tools/profile/names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/cli_support.h"

namespace sluice {
namespace {

class ProfileNames : public Cli {
 protected:
  Program program(const Words& more) const {
    const CommandResult result =
        run(Words{"plan", "--model", kTiny, "--batch", "8", "--micro-batch", "1", "--text"} + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return program_from_text(result.out);
  }
};

TEST_F(ProfileNames, EveryBufferIsExplainedOnce) {
  const Words nodes{"--ranks", "8", "--ranks-per-node", "4", "--machine", "a100-cluster"};
  std::set<std::string> seen;
  for (const Words& more :
       {Words{"--val-data", text}, Words{"--ranks", "2", "--zero", "3"}, nodes + Words{"--zero", "0"},
        nodes + Words{"--zero", "1"}, nodes + Words{"--zero", "3", "--shard-weights", "all"},
        nodes + Words{"--zero", "3", "--shard-weights", "node"},
        nodes + Words{"--zero", "1", "--compress", "powersgd:2"}}) {
    const Program p = program(more);
    const std::vector<NameMeaning> rows = buffer_names(p);
    for (const Buffer& b : p.buffers)
      EXPECT_EQ(std::ranges::count_if(rows, [&](const NameMeaning& r) { return has_form(b.name, r.name); }),
                1)
          << b.name;
    for (const NameMeaning& row : rows) {
      EXPECT_FALSE(row.meaning.empty()) << row.name;
      seen.insert(row.name);
    }
  }
  for (const char* name :
       {"w.GROUP", "v.LAYER.POSITION.MICRO_BATCH", "tokens", "validation_loss", "r.GROUP", "e.GROUP",
        "ea.GROUP", "pm.GROUP", "wf.GROUP", "wfm.GROUP", "wm.GROUP", "nm.GROUP", "c.GROUP", "q.GROUP"})
    EXPECT_TRUE(seen.contains(name)) << name << " is in none of these programs";
}

TEST(ProfileNamesAlone, AreReadFromTheDocument) {
  Program p;
  p.buffers = {{.name = "v.h.0.0.0"}, {.name = "labels"}};
  const std::vector<NameMeaning> rows = buffer_names(p);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "v.LAYER.POSITION.MICRO_BATCH");
  EXPECT_EQ(rows[0].meaning, "saved tensors of the segment at this position of the layer (0: the first)");
  EXPECT_EQ(rows[1].name, "labels");
  EXPECT_EQ(rows[1].meaning, "data of a wave, of a step or of a validation batch");
  EXPECT_EQ(instruction_names().size(), 3u);
  EXPECT_EQ(instruction_names().back().name, "LANE BUFFER FIRST-END");
}

TEST(ProfileNamesAlone, FormsDifferByTheirFirstWord) {
  EXPECT_TRUE(has_form("w.h.2", "w.GROUP"));
  EXPECT_FALSE(has_form("wf.h.2", "w.GROUP"));
  EXPECT_TRUE(has_form("scalars", "scalars"));
  EXPECT_FALSE(has_form("validation_loss", "loss"));
}

}  // namespace
}  // namespace sluice
