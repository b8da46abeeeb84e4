#include "engine/plan/lower/body_builder.h"

#include "engine/base/error.h"

namespace sluice {

BodyBuilder::BodyBuilder(Program& program, std::string name, BodyState start, BodyState end)
    : program_(program) {
  body_.name = std::move(name);
  body_.start = start;
  body_.end = end;
  body_.advance.assign(program.rings.size(), 0);
}

Task& BodyBuilder::task(TaskKind kind, uint32_t subject, uint32_t slice) {
  Task t;
  t.kind = kind;
  t.subject = subject;
  t.slice = slice;
  body_.tasks.push_back(std::move(t));
  return body_.tasks.back();
}

void BodyBuilder::add(Task& task, BufferId buffer, uint32_t first, uint32_t last, Access access,
                      uint8_t back) {
  const Buffer& b = program_.buffers[buffer];
  std::vector<uint32_t>& versions = versions_[{buffer, back}];
  versions.resize(b.pieces(), 0);
  const uint32_t version = versions[first];
  for (uint32_t p = first; p < last; ++p) {
    CHECK(versions[p] == version, b.name + ": pieces of one operand have different versions");
    if (access != Access::read) ++versions[p];
  }
  CHECK(access == Access::write || version > 0 || b.permanent, b.name + " is read before it is written");
  task.operands.push_back({buffer, first, last, access, version, back});
}

void BodyBuilder::add(Task& task, BufferId buffer, Access access, uint8_t back) {
  add(task, buffer, 0, program_.buffers[buffer].pieces(), access, back);
}

bool BodyBuilder::written(BufferId buffer, uint32_t piece) const {
  const auto it = versions_.find({buffer, uint8_t{0}});
  return it != versions_.end() && it->second[piece] > 0;
}

BodyId BodyBuilder::finish() {
  program_.bodies.push_back(std::move(body_));
  return static_cast<BodyId>(program_.bodies.size() - 1);
}

}  // namespace sluice
