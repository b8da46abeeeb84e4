// Frequencies of the rotary embedding (Su et al., "RoFormer", 2021), and how a config.json scales them for
// contexts longer than those of the first training. The rules are those of transformers'
// modeling_rope_utils.py, computed in double. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

// `dynamic` scales sequences beyond the context only.
enum class RopeType : uint8_t { plain, linear, dynamic, llama3, yarn, longrope };
const char* rope_type_name(RopeType type);  // as in config.json

// The fields have the names of config.json's keys, in short.
struct RopeScaling {
  RopeType type = RopeType::plain;
  double partial = 1;           // the part of a head's columns that turns
  double factor = 0;            // 0: context / original_context
  double original_context = 0;  // llama3, yarn, longrope; 0: the context
  double low = 1, high = 4;     // llama3
  // yarn (Peng et al., 2023)
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double mscale = 0, mscale_all_dim = 0;
  double attention_factor = 0;  // yarn, longrope; 0: it follows from the other fields
  // longrope (Ding et al., 2024): divisors of the frequencies. short_factor is for sequences up to
  // original_context, long_factor for longer ones.
  std::vector<double> short_factor, long_factor;

  bool operator==(const RopeScaling&) const = default;
};

// What OpKind::rope takes: radians per position of each pair, and a factor of the turned columns.
struct RopeTurns {
  std::vector<double> frequencies;
  double scale = 1;
};

struct RopeSizes {
  int64_t head_size;
  int64_t context;   // the model's
  int64_t sequence;  // the longest that is trained or generated
};
RopeTurns rope_turns(double theta, const RopeScaling& scaling, const RopeSizes& sizes);

// The number of frequencies.
int64_t rope_pairs(const RopeScaling& scaling, int64_t head_size);

}  // namespace sluice
