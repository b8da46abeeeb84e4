// How the nvme tier's addresses are laid over its files: in stripes of 1 MiB, of which each file holds a
// share in proportion to its `part`.
//
// 1. The files of successive stripes repeat with a period, in which every file has at least one stripe.
//    d'Hondt's rule assigns a period's stripes: each goes to the file with the least
//    (stripes + 1) / `part`. Of all assignments, this one has the least maximum of stripes / `part`
//    (Balinski, Young: Fair Representation, 1982). The time of a large transfer is in proportion to
//    that maximum, where the files' speeds are in proportion to `part`.
// 2. The period is the shortest with which a large transfer takes at most 0.5 % longer than with exact
//    proportions. If no period of up to 1024 stripes achieves this, the best of them is taken.
// 3. Within a period the files take turns by smooth weighted round robin (nginx,
//    ngx_http_upstream_round_robin.c, commit 52327e0627f4, 2012): so successive stripes are spread, too.
// 4. A file holds its stripes one after the other, in order of address.
//
// Constant after construction, so that any thread may ask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

constexpr uint64_t kStripeBytes = 1 << 20;  // as long as a request, so that no request is in two files
constexpr size_t kStripeFilesMax = 64;      // at 16 requests for each file, they fill the largest queue: 1024

class Stripes {
 public:
  // One positive `part` for each file; at most kStripeFilesMax files.
  explicit Stripes(std::span<const double> parts);

  struct Place {
    uint32_t file = 0;
    uint64_t index = 0;  // among the file's stripes
  };
  Place locate(uint64_t stripe) const;

  // How many of the tier's first `stripes` the file holds.
  uint64_t held(uint32_t file, uint64_t stripes) const;

  size_t files() const { return counts_.size(); }
  std::span<const uint32_t> pattern() const { return pattern_; }  // the files of one period
  double share(uint32_t file) const { return double(counts_[file]) / double(pattern_.size()); }

 private:
  std::vector<uint32_t> counts_;   // by file: stripes of a period
  std::vector<uint32_t> pattern_;  // by stripe of a period: file
  std::vector<uint32_t> before_;   // by stripe of a period: earlier ones in the same file
};

}  // namespace sluice
