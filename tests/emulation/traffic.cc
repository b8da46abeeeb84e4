#include "tests/emulation/traffic.h"

#include <utility>

namespace sluice::emulation {

thread_local Traffic* traffic_of_thread = nullptr;

Traffic::Traffic(const void* begin, uint64_t bytes)
    : begin_(reinterpret_cast<uintptr_t>(begin)),
      bytes_(bytes),
      sectors_((begin_ + bytes) / kSectorBytes - begin_ / kSectorBytes + 1) {}

void Traffic::begin_launch(std::string source, bool product) {
  launches_.push_back({.source = std::move(source), .product = product});
  first_block_ = block_ + 1;
}

void Traffic::begin_block() {
  ++block_;
  ++launches_.back().blocks;
  visits_ = 0;
}

void Traffic::touch(const void* begin, uint64_t bytes, Touch Sector::*last,
                    SectorCount LaunchTraffic::*count) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  if (at - begin_ >= bytes_ || bytes == 0) return;
  SectorCount& sectors = launches_.back().*count;
  for (uintptr_t sector = at / kSectorBytes; sector <= (at + bytes - 1) / kSectorBytes; ++sector) {
    Touch& touched = sectors_[sector - begin_ / kSectorBytes].*last;
    if (touched.block < first_block_) ++sectors.distinct;
    if (touched.block != block_ || visits_ - touched.visits >= kNear) {
      ++sectors.visits;
      ++visits_;
    }
    touched = {block_, visits_};
  }
}

std::vector<LaunchTraffic> Traffic::take() { return std::exchange(launches_, {}); }

}  // namespace sluice::emulation
