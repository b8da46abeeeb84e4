// Renders cases of tools/fixtures/chat_templates.py and prints those that differ from what jinja2 rendered.
//
//   compare_templates CASES.json
//
// A program of its own, which the script compiles: its cases are made from templates of others, and stay out
// of the repository. Exit status 1 if a case differs.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/models/text/template/template_cases.h"

namespace {

using namespace sluice;
using namespace sluice::testing;

struct Counts {
  int same = 0, different = 0, refused = 0;
};

// Adds the case to the counts; prints it if it differs, or is refused.
void compare(const TemplateCase& wanted, Counts& counts) {
  const TemplateResult got = render_case(wanted);
  if (got.is_refused) {
    ++counts.refused;
    std::printf("refused  %s: %s\n", wanted.name.c_str(), got.error.c_str());
  } else if (const std::string difference = difference_of(wanted, got); difference.empty()) {
    ++counts.same;
  } else {
    ++counts.different;
    std::printf("differs  %s: %s\n", wanted.name.c_str(), difference.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: compare_templates CASES.json\n");
    return 2;
  }
  std::map<std::string, Counts> by_template;
  Counts all;
  for_each_case(argv[1], [&](const TemplateCase& wanted) { compare(wanted, by_template[wanted.group]); });
  for (const auto& [name, counts] : by_template) {
    if (counts.different + counts.refused > 0)
      std::printf("%s: %d same, %d different, %d refused\n", name.c_str(), counts.same, counts.different,
                  counts.refused);
    all.same += counts.same;
    all.different += counts.different;
    all.refused += counts.refused;
  }
  std::printf("%zu templates: %d cases same, %d different, %d refused\n", by_template.size(), all.same,
              all.different, all.refused);
  return all.different == 0 ? 0 : 1;
}
