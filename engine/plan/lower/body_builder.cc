#include "engine/plan/lower/body_builder.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr size_t kOperands = 4;  // most tasks have four operands or a few more
constexpr uint32_t kUntouched = UINT32_MAX;

}  // namespace

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
  t.operands.reserve(kOperands);
  body_.tasks.push_back(std::move(t));
  return body_.tasks.back();
}

void BodyBuilder::add(Task& task, Role role, BufferId buffer, uint32_t first, uint32_t last, Access access,
                      uint8_t back) {
  const Buffer& b = program_.buffers[buffer];
  uint32_t* const versions = versions_of(buffer, back);
  const uint32_t version = versions[first];
  for (uint32_t p = first; p < last; ++p) {
    CHECK(versions[p] == version, b.name + ": pieces of one operand have different versions");
    if (access != Access::read) ++versions[p];
  }
  CHECK(access == Access::write || version > 0 || b.permanent, b.name + " is read before it is written");
  task.operands.push_back({.buffer = buffer,
                           .first = first,
                           .last = last,
                           .access = access,
                           .version = version,
                           .back = back,
                           .role = role});
}

void BodyBuilder::add(Task& task, Role role, BufferId buffer, Access access) {
  add(task, role, buffer, 0, program_.buffers[buffer].pieces(), access);
}

// The pointer is valid until another buffer is touched.
uint32_t* BodyBuilder::versions_of(BufferId buffer, uint8_t back) {
  if (versions_.size() <= back) versions_.resize(back + 1u);
  Versions& of = versions_[back];
  if (of.begin.size() <= buffer)
    of.begin.resize(std::max<size_t>(program_.buffers.size(), buffer + 1u), kUntouched);
  if (of.begin[buffer] == kUntouched) {
    of.begin[buffer] = static_cast<uint32_t>(of.of_pieces.size());
    of.of_pieces.resize(of.of_pieces.size() + program_.buffers[buffer].pieces(), 0);
  }
  return of.of_pieces.data() + of.begin[buffer];
}

bool BodyBuilder::written(BufferId buffer, uint32_t piece) const {
  if (versions_.empty() || versions_[0].begin.size() <= buffer) return false;
  const uint32_t begin = versions_[0].begin[buffer];
  return begin != kUntouched && versions_[0].of_pieces[begin + piece] > 0;
}

BodyId BodyBuilder::finish() {
  program_.bodies.push_back(std::move(body_));
  return static_cast<BodyId>(program_.bodies.size() - 1);
}

}  // namespace sluice
