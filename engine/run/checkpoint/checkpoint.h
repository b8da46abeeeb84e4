// Checkpoints: a directory OUT/checkpoints/step-NNNNNNNNN with a manifest.json (manifest.h) and, from every
// rank, one safetensors file for each plane of which it owns a part.
//
// A checkpoint is complete or absent. Files are written into a hidden temporary directory and synced, the
// manifest last; then the directory is renamed and its parent synced. The file master holds the
// trainable tensors in fp32. Each plane of the optimizer has a file, too: with AdamW exp_avg and exp_avg_sq.
// The file frozen holds the frozen tensors in working precision. Tensors have their global names. A file
// holds ranges of the groups' flat buffers one after the other, each in whole pages of 4096 bytes, so that
// O_DIRECT can write any shard from where it lies. Since the format allows no holes, the bytes between
// tensors are declared as U8 tensors "padding.N", which readers skip. A part of a tensor that begins at its
// element N is stored as "NAME@N". A single rank writes whole groups, so nothing depends on budgets or
// shards; any number of ranks can read what another number wrote. With compressed gradients, every rank also
// writes its compression error, by tensor, and the right factors, by group. A gradient is about left x right
// (low_rank.h). Every byte of a file belongs to one of its sections: the header, or a range. The manifest
// lists them with their checksums. A section is verified when any of it is read for the first time.
//
// Writer: constructed and committed by the trainer's thread; begin_write() is called by the one lane that
// writes. One writer at a time for an OUT (a lock). Reader: const calls from any thread. Errors:
// malformed_file for damaged or missing files, also from calls that read values; io for a full or failing
// drive; environment for a directory that cannot be written or is in use.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/run/checkpoint/directory.h"
#include "engine/run/checkpoint/manifest.h"
#include "engine/run/execute/runner.h"
#include "engine/run/ranks/ranks.h"
#include "models/files/safetensors.h"

namespace sluice {

// A range that a rank writes: elements of a group's flat buffer, in multiples of 2048 (kGroupPadding), or all
// of the group's right factors.
struct OwnedRange {
  uint32_t group = 0;
  uint64_t first = 0, elements = 0;
  Owned what = Owned::state;
};
// The ranges of a single rank.
std::vector<OwnedRange> whole_groups(const Model& model);
// The ranges that each rank writes, in order of kind, group and first element.
std::vector<std::vector<OwnedRange>> owned_ranges(const Lowering& lowering);

class CheckpointWriter {
 public:
  // Removes what killed writers left. Makes the temporary directory, and in it every file with its header and
  // its full length allocated, so that a full drive is noticed here. The model is not referred to afterwards.
  // All ranks construct a writer, and commit it, together.
  CheckpointWriter(const std::string& out_directory, const Model& model, CheckpointState state)
      : CheckpointWriter(out_directory, model, std::move(state), {whole_groups(model)}, {}) {}
  CheckpointWriter(const std::string& out_directory, const Model& model, CheckpointState state,
                   const std::vector<std::vector<OwnedRange>>& by_rank, const Ranks& ranks);
  ~CheckpointWriter();  // removes the temporary directory unless committed
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Where to write the shard that begins at element `first` of the group's flat buffer. The shard must lie in
  // one of this rank's ranges. Counted from the range's start, the shard begins at a multiple of 65,536
  // elements (131,072 of one byte), and ends at such a multiple or with the range. `bytes` are whole pages.
  // Adds them to the checksums: to be called once for each plane of each shard. The file is open for O_DIRECT
  // unless its file system refuses that. With O_DIRECT, memory, offset and length of a write must be
  // multiples of 4096, as they are for every shard. FileTarget::name is a string literal.
  FileTarget begin_write(uint32_t group, uint64_t first, const StatePlane& plane,
                         std::span<const std::byte> bytes);

  // After every shard was written: whether all fp32 values of all ranks are finite. All ranks call it.
  bool all_are_finite() const;

  // Makes all that was written durable under its name. A complete checkpoint of the same step is replaced;
  // anything else of that name is kept as NAME.damaged. To be called once, after every shard was written.
  // When it throws, this checkpoint is lost and earlier ones are intact: a failed sync is never repeated,
  // since the kernel forgets what it could not write.
  void commit();

  const std::string& path() const;  // of the committed checkpoint
  bool owns_nothing() const;        // this rank writes no range

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// The exact size of one checkpoint's tensor files with their headers, in bytes.
uint64_t checkpoint_bytes(const Model& model, std::span<const StoredPlane> planes,
                          const std::vector<std::vector<OwnedRange>>& by_rank);
// The exact size of the tensor files of one checkpoint of a plan's run.
uint64_t checkpoint_bytes(const Plan& plan, OptimizerKind optimizer);
// What a drive must have free for one checkpoint with its manifest. A checkpoint takes no more than that.
struct CheckpointSpace {
  uint64_t bytes = 0, files = 0;  // the directory is counted in `files`
};
CheckpointSpace checkpoint_space(const Plan& plan, OptimizerKind optimizer);
// A clause that says why no checkpoint can be written in a run's directory at the moment: its drive has no
// room, or is not there. nullopt: no reason is known; a write will tell. `with_last`: the run's last
// checkpoint must fit beside this one.
std::optional<std::string> obstacle_to_checkpoint(const std::string& out_directory, CheckpointSpace space,
                                                  bool with_last = false);
// As obstacle_to_checkpoint(), for a checkpoint before the run's last. The last checkpoint must fit beside
// this one, unless the run has as many complete checkpoints as it keeps, so that this one replaces an older
// one.
std::optional<std::string> obstacle_on_the_way(const std::string& out_directory, const CheckpointSpace& space,
                                               int64_t keep, bool keep_best);
int64_t count_complete_checkpoints(const std::string& out_directory);
// Bytes of the largest file of any rank, without the manifest.
uint64_t largest_checkpoint_file(const Plan& plan, OptimizerKind optimizer);

// The path of a run's newest complete checkpoint; nullopt if there is none. Complete means: the manifest is
// valid, and every file has its exact size and a valid header. The tensors' bytes are not read. `damaged`
// receives a sentence for each newer checkpoint that is not complete.
std::optional<std::string> newest_checkpoint(const std::string& out_directory,
                                             std::vector<std::string>* damaged = nullptr);

// A run's complete checkpoint with the lowest validation loss, and the oldest of these if several have it;
// nullopt: none has a loss. Only checkpoints count that were validated on the same tokens as the newest one
// with a loss.
struct BestCheckpoint {
  int64_t step = 0;
  std::string path;
  ValidationRecord validation;
};
std::optional<BestCheckpoint> best_checkpoint(const std::string& out_directory);

// Whether the run has a complete checkpoint of state.step. Throws Error(io, environment).
bool has_checkpoint(const std::string& out_directory, const CheckpointState& state);

// Writes the manifest of the run's checkpoint of state.step anew, with this state: a validation that came
// after the checkpoint, and what is still pending. Does nothing and returns false if there is no such
// checkpoint, or if it is another run's. A kill leaves the old manifest or the new one. Throws Error(io,
// environment).
bool amend_checkpoint(const std::string& out_directory, const CheckpointState& state);

// Deletes all complete checkpoints but the newest `keep` (the newest one if `keep` is less than 1) and, with
// `keep_best`, the best one. Damaged ones do not count and stay.
void prune_checkpoints(const std::string& out_directory, int64_t keep, bool keep_best = false);

// Renames the complete checkpoints of steps after `step` to NAME.set-aside, newest first, so that a kill on
// the way leaves checkpoints of one run. Damaged ones stay. Returns a printable sentence for each that was
// renamed or kept.
std::vector<std::string> retire_checkpoints_after(const std::string& out_directory, int64_t step);

// Deletes what retire_checkpoints_after() has set aside. To be called when the run has saved a checkpoint on
// its new way. A checkpoint of a stop does not count: a user who went back by mistake may stop the run to
// undo it.
void delete_set_aside(const std::string& out_directory);

class CheckpointReader {
 public:
  // `path` is the directory of a checkpoint.
  static CheckpointReader open(const std::string& path);

  const CheckpointState& state() const { return state_; }
  const std::string& path() const { return path_; }

  // check() throws unless a training of the model can go on from this checkpoint, check_weights() unless the
  // model's weights can be read from it. For a model with adapters, they look at the adapters only. The
  // Error(malformed_file) lists up to ten tensors that do not fit, and counts the rest.
  void check(const Model& model) const;
  void check_weights(const Model& model) const;

  // Reads a plane's values for elements [first, first + count) of a tensor, which must be in the tensor.
  // Returns false if there is no such tensor or plane.
  bool read(const std::string& tensor, const StatePlane& plane, uint64_t first, uint64_t count,
            void* out) const;

  // Reads what rank `writer` wrote for itself: the compression error of the tensor `name`, or the right
  // factors of the group `name`. Returns false if that rank wrote no such file. Throws Error(malformed_file)
  // if the file lacks the name or has fewer than `elements` values for it.
  bool read_of_writer(int64_t writer, const StatePlane& plane, const std::string& name, uint64_t elements,
                      uint64_t first, uint64_t count, float* out) const;

  // Reads from the master weights or, for a frozen tensor, the weights, as fp32. Requires check_weights().
  void read_weights(const std::string& tensor, uint64_t first, uint64_t count, float* out) const;

 private:
  struct Piece {
    size_t file = 0;                            // index into files_
    const SafetensorsTensor* stored = nullptr;  // in that file
    uint64_t first = 0, count = 0;
  };
  struct Tensor {
    Shape shape;
    std::vector<std::vector<Piece>> planes;  // by plane of planes_, sorted by first; empty: not stored
  };

  struct File {
    SafetensorsFile content;
    std::vector<ManifestSection> sections;
    std::vector<uint64_t> ends;                  // of the sections, in bytes
    std::unique_ptr<std::once_flag[]> verified;  // by section
  };

  CheckpointReader() = default;
  void open_file(const ManifestFile& file);
  size_t index_of(std::string_view plane) const;  // in planes_
  // Calls read(file, stored, first element of the piece, elements, elements done before) for each piece that
  // has some of the range.
  template <typename Read>
  bool read_pieces(const std::string& tensor, const StatePlane& plane, uint64_t first, uint64_t count,
                   const Read& read) const;
  void verify(const File& file, uint64_t first_byte, uint64_t bytes) const;
  void verify_section(const File& file, size_t section) const;
  Piece find_piece(const ManifestTensor& tensor, const StatePlane& plane, const ManifestPiece& piece) const;
  void check_tensors(const Model& model, bool weights_only) const;
  std::string mismatch(const Group& group, const Parameter& parameter, bool weights_only) const;

  std::string path_;
  CheckpointState state_;
  std::vector<StoredPlane> planes_;  // of state, as the manifest's optimizer and precision have them
  std::vector<File> files_;
  std::unordered_map<std::string, size_t> file_index_;  // by name
  std::unordered_map<std::string, Tensor> tensors_;
};

// Returns nullopt if a reader cannot open the checkpoint; `damage` then receives a sentence that says why.
std::optional<CheckpointReader> open_if_complete(const CheckpointEntry& entry, std::string* damage = nullptr);

}  // namespace sluice
