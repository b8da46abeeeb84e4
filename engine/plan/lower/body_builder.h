// Builds one body of tasks and hands out versions, so that every operand names the content that it needs.
#pragma once

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace sluice {

class BodyBuilder {
 public:
  BodyBuilder(Program& program, std::string name, BodyState start, BodyState end);

  void advance(uint8_t ring) { body_.advance[ring] = 1; }
  Task& task(TaskKind kind, uint32_t subject, uint32_t slice);  // the reference lives until the next task

  void add(Task& task, Role role, BufferId buffer, uint32_t first, uint32_t last, Access access,
           uint8_t back = 0);
  void add(Task& task, Role role, BufferId buffer, Access access);  // all pieces

  // Whether the piece has been written in this body.
  bool written(BufferId buffer, uint32_t piece = 0) const;

  BodyId finish();  // appends the body to the program

 private:
  struct Versions {
    std::vector<uint32_t> begin;      // by buffer: where a touched one's pieces begin in `of_pieces`
    std::vector<uint32_t> of_pieces;  // of buffers in the order in which they were touched
  };
  uint32_t* versions_of(BufferId buffer, uint8_t back);

  Program& program_;
  Body body_;
  std::vector<Versions> versions_;  // by Operand::back
};

}  // namespace sluice
