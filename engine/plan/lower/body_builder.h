// Builds one body of tasks and hands out versions, so that every operand names the content that it needs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

class BodyBuilder {
 public:
  BodyBuilder(Program& program, std::string name, BodyState start, BodyState end);

  void advance(uint8_t ring) { body_.advance[ring] = 1; }
  Task& task(TaskKind kind, uint32_t subject, uint32_t slice);  // the reference lives until the next task

  void add(Task& task, BufferId buffer, uint32_t first, uint32_t last, Access access, uint8_t back = 0);
  void add(Task& task, BufferId buffer, Access access, uint8_t back = 0);  // all pieces

  // The piece has been written in this body.
  bool written(BufferId buffer, uint32_t piece = 0) const;

  BodyId finish();  // appends the body to the program

 private:
  Program& program_;
  Body body_;
  std::map<std::pair<BufferId, uint8_t>, std::vector<uint32_t>> versions_;  // by (buffer, back), piece
};

}  // namespace sluice
