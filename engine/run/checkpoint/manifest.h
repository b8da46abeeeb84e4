// A checkpoint's manifest: the numbers of the run at that step, and where every tensor's elements are.
//
// manifest.json holds:
// - format "sluice-checkpoint" and its version; numerics, run, step, t, loss_scale, clean_steps,
//   skipped_steps, cursor, tokens, data_checksum, micro_batch, matmul_algorithms (if there are any),
//   precision, optimizer, writers, options, model_config, base (of adapters: its directory and checksum),
//   validation (if the step was validated: loss, tokens and data_checksum), pending_validation and
//   pending_samples (if these are still to be made of the step's weights: true)
// - `files`, each with its exact size and its sections, which follow each other from the first byte to the
//   last; each section has a checksum (block_checksum.h)
// - `tensors`, each with name, shape and, by plane (stored_plane.h), its pieces {file, first, count[,
//   stored_as]}: where elements [first, first + count) are. In that safetensors file they are a tensor of
//   their own, with the same name or `stored_as`. In order, a plane's pieces cover the tensor once
// - last, the XXH3-64 of all the text before it
// Nothing refers to budgets, groups or shards, so a checkpoint can be read with different ones. Numbers read
// back exactly. Callers: reader.cc and writer.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/run/checkpoint/stored_plane.h"
#include "engine/run/options/options.h"

namespace sluice {

// The version of what decides bits beside options, shapes and devices. A checkpoint says with which version
// it was written. In version 2, if a group has several kinds of uses (a tied embedding), its gradient is
// summed for each kind first, then over kinds. In version 1, it is summed over all uses at once, in the order
// of backward, and on GPUs GELU takes a value that is not rounded.
constexpr int64_t kNumerics = 2;

// The base of a run with adapters: a Hugging Face directory, and the checksum of its weights
// (sampled_checksum()).
struct BaseModel {
  std::string directory;
  uint64_t checksum = 0;
};

// The validation of a step's weights: the mean loss over `tokens` labels of data with `data_checksum`.
struct ValidationRecord {
  double loss = 0;
  int64_t tokens = 0;
  uint64_t data_checksum = 0;

  // Whether the two losses can be compared, because they are means over the same tokens.
  bool is_over_same(const ValidationRecord& other) const {
    return tokens == other.tokens && data_checksum == other.data_checksum;
  }
};

// What a run resumes from, besides tensors.
struct CheckpointState {
  int64_t numerics = kNumerics;
  uint64_t run = 0;            // drawn at random when the run begins; 0: not known
  int64_t step = 0;            // steps done
  int64_t t = 0;               // steps whose update was not skipped
  double loss_scale = 1;       // for the next step
  int64_t clean_steps = 0;     // since the scale last changed
  int64_t skipped_steps = 0;   // in total
  uint64_t cursor = 0;         // sequences read so far: where in the data order the next step begins
  uint64_t tokens = 0;         // of the training data
  uint64_t data_checksum = 0;  // TokenData::sample_checksum
  int64_t micro_batch = 1;
  std::string matmul_algorithms;  // chosen by time, as the device's text; empty: none
  int64_t writers = 1;            // ranks that wrote the checkpoint, each its own files
  DType precision = DType::bf16;
  OptimizerKind optimizer = OptimizerKind::adamw;
  std::string model_config;                    // text of a config.json
  std::optional<BaseModel> base;               // the checkpoint holds adapters only
  std::optional<ValidationRecord> validation;  // none: the step was not validated
  // The step's weights have yet to be validated, or to write samples.
  bool pending_validation = false, pending_samples = false;
  std::vector<ManifestOption> options;
};

struct ManifestSection {
  uint64_t bytes = 0, checksum = 0;
};

struct ManifestFile {
  std::string name;  // without directories
  uint64_t bytes = 0;
  std::vector<ManifestSection> sections;
};

struct ManifestPiece {
  uint32_t file = 0;      // index into Manifest::files
  std::string stored_as;  // the tensor's name within that file
  uint64_t first = 0, count = 0;
};

// A tensor's values in a plane of the state, in order of first.
struct ManifestPlane {
  std::string name;
  std::vector<ManifestPiece> pieces;
};

struct ManifestTensor {
  std::string name;
  Shape shape;
  std::vector<ManifestPlane> planes;
};

struct Manifest {
  CheckpointState state;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

std::string manifest_to_json(const Manifest& manifest);

// A JSON object's text with its checksum as the last field.
std::string sealed(std::string object);

// Throws Error(malformed_file) with `path` and a sentence unless all of this holds: the text is JSON without
// duplicate keys, of a known version, with the checksum of sealed(); every number is in its range and agrees
// with the others and with the options; file names have no directories; sections fill their files; pieces
// cover their tensors.
Manifest manifest_from_json(const std::string& text, const std::string& path);

}  // namespace sluice
