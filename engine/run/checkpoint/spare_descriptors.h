// File descriptors that are held from the start of a run, so that its last checkpoint finds them free,
// whatever else the process opens meanwhile.
#pragma once

#include <vector>

#include "engine/base/file.h"

namespace sluice {

class SpareDescriptors {
 public:
  // What one rank has open at most while it writes a checkpoint: five files, the manifest, a lock, a
  // directory.
  static constexpr size_t kOfCheckpoint = 8;

  // Throws Error(environment) where the limit on open files is too low.
  explicit SpareDescriptors(size_t count);

  // The descriptors are free as long as a Lent lives. Its destructor holds as many again as it can get.
  class Lent {
   public:
    explicit Lent(SpareDescriptors& from) : from_(from) { from_.held_.clear(); }
    ~Lent() { from_.hold(); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    SpareDescriptors& from_;
  };

 private:
  bool hold();

  size_t count_;
  std::vector<FileDescriptor> held_;
};

}  // namespace sluice
