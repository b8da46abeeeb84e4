// Checkpoints: OUT/checkpoints/step-NNNNNNNNN, a manifest.json (manifest.h) and, from every rank, a
// safetensors file a plane.
//
// A checkpoint is complete or it is not there: files are written in a hidden temporary directory, synced,
// the manifest last, then the directory is renamed and its parent synced. master, exp_avg and exp_avg_sq
// hold the trainable tensors in fp32, frozen the frozen ones in working precision, by their global names. A
// file holds ranges of the groups' flat buffers one after the other, each at a multiple of 4096 bytes, so
// that any shard of them can be written by O_DIRECT from where it lies; since the format allows no holes,
// what is between tensors is declared as U8 tensors "padding.N", which readers pass over. A part of a tensor
// that begins at its element N is stored as "NAME@N". A rank alone has whole groups, so that nothing depends
// on budgets or shards; any number of ranks can read what another number wrote. Where gradients are
// compressed, every rank also has its whole error, by tensor, and the right factors, by group.
//
// Every byte of a file belongs to one of its sections, which the manifest lists with their checksums: here
// the header, and each range. A section is verified when something of it is read for the first time.
//
// Writer: constructed and committed by the trainer's thread; begin_write() is called by the one lane that
// writes. One writer at a time for an OUT (a lock). Reader: const calls from any thread. Errors:
// malformed_file for what is damaged or missing, also from what reads values, io for a full or failing disk,
// environment for a directory that cannot be written or is in use.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/run/checkpoint/manifest.h"
#include "engine/run/execute/runner.h"
#include "engine/run/ranks/ranks.h"
#include "models/files/safetensors.h"

namespace sluice {

// Of a group's flat buffer, in elements: multiples of 2048. Or of its right factors, whole.
enum class Owned : uint8_t { state, error, factors };
struct OwnedRange {
  uint32_t group = 0;
  uint64_t first = 0, elements = 0;
  Owned what = Owned::state;
};
// Of one rank alone.
std::vector<OwnedRange> whole_groups(const Model& model);
// By rank, in order of kind, group and first element: what each writes of the training state.
std::vector<std::vector<OwnedRange>> owned_ranges(const Lowering& lowering);

class CheckpointWriter {
 public:
  // Removes what dead writers left, makes the temporary directory, and in it every file with its header and
  // its full length allocated, so that a full disk shows here. The model is not referred to afterwards. With
  // several ranks, all construct theirs and commit at the same time.
  CheckpointWriter(const std::string& out_directory, const Model& model, CheckpointState state)
      : CheckpointWriter(out_directory, model, std::move(state), {whole_groups(model)}, {}) {}
  CheckpointWriter(const std::string& out_directory, const Model& model, CheckpointState state,
                   const std::vector<std::vector<OwnedRange>>& by_rank, const Ranks& ranks);
  ~CheckpointWriter();  // removes the temporary unless committed
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Where a shard goes, which begins at element `first` of the group's flat buffer and lies in a range of
  // this rank: at a multiple of 65,536 elements of the range, and ends at another or with the range. Takes
  // its bytes into the checksums: once for each shard.
  // The file is open for O_DIRECT unless its file system refuses: memory, offset and length of a write are
  // then multiples of 4096, as those of every shard are. The name is a literal.
  FileTarget begin_write(uint32_t group, uint64_t first, Plane plane, std::span<const std::byte> bytes);

  // Makes all that was written durable under its name. A complete checkpoint of the same step is replaced;
  // what else has its name is kept as NAME.damaged. Once, after every shard was written. When it throws, this
  // checkpoint is lost and the ones before are intact: a failed sync is never repeated, since the kernel
  // forgets what it could not write.
  void commit();

  const std::string& path() const;  // of the committed checkpoint
  bool owns_nothing() const;        // of what is written

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// Bytes of one checkpoint's tensor files with their headers, exactly; the manifest adds some 300 a tensor.
uint64_t checkpoint_bytes(const Model& model, const std::vector<std::vector<OwnedRange>>& by_rank);

// The newest complete checkpoint of a run, as a path; nullopt if there is none. Complete: the manifest is
// valid, every file has its exact size and a valid header; the tensors' bytes are not looked at. `damaged`
// receives a sentence for each newer one that is not.
std::optional<std::string> newest_checkpoint(const std::string& out_directory,
                                             std::vector<std::string>* damaged = nullptr);

// Deletes complete checkpoints but the newest `keep`; at least 1. Damaged ones do not count and stay.
void prune_checkpoints(const std::string& out_directory, int64_t keep);

// Deletes the complete checkpoints of steps after `step`, newest first, so that whatever a kill leaves is one
// run; damaged ones and what is none stay. Returns a printable sentence for each that was deleted or kept.
std::vector<std::string> retire_checkpoints_after(const std::string& out_directory, int64_t step);

class CheckpointReader {
 public:
  // A checkpoint's directory.
  static CheckpointReader open(const std::string& path);

  const CheckpointState& state() const { return state_; }
  const std::string& path() const { return path_; }

  // Whether training this model can go on from here, or its weights be had. One Error(malformed_file) lists
  // up to ten tensors that are missing, unknown, or of another shape, and counts the rest.
  void check(const Model& model) const;
  void check_weights(const Model& model) const;

  // Elements [first, first + count) of a tensor, which must lie within it; frozen weights are widened.
  // False if there is no such tensor or plane.
  bool read(const std::string& tensor, Plane plane, uint64_t first, uint64_t count, float* out) const;

  // What a rank that wrote had alone: Plane::error of a tensor, Plane::factors of a group. False if that rank
  // wrote none; throws Error(malformed_file) where its file lacks this one, or has another length.
  bool read_of_writer(int64_t writer, Plane plane, const std::string& name, uint64_t elements,
                      uint64_t first, uint64_t count, float* out) const;

  // The same from the master or, of a frozen tensor, the weights. After check_weights().
  void read_weights(const std::string& tensor, uint64_t first, uint64_t count, float* out) const;

 private:
  struct Piece {
    size_t file = 0;                            // index into files_
    const SafetensorsTensor* stored = nullptr;  // in that file
    uint64_t first = 0, count = 0;
  };
  struct Tensor {
    Shape shape;
    std::array<std::vector<Piece>, kPlanes> planes;  // in order of first
  };

  struct File {
    SafetensorsFile content;
    std::vector<ManifestSection> sections;
    std::vector<uint64_t> ends;                  // of the sections, in bytes
    std::unique_ptr<std::once_flag[]> verified;  // by section
  };

  CheckpointReader() = default;
  void open_file(const ManifestFile& file);
  void read_stored(const File& file, const SafetensorsTensor& stored, uint64_t first, uint64_t count,
                   float* out) const;
  void verify(const File& file, uint64_t first_byte, uint64_t bytes) const;
  void verify_section(const File& file, size_t section) const;
  Piece find_piece(const ManifestTensor& tensor, Plane plane, const ManifestPiece& piece,
                   DType precision) const;
  void check_tensors(const Model& model, bool weights_only) const;
  std::string mismatch(const Group& group, const Parameter& parameter, bool weights_only) const;

  std::string path_;
  CheckpointState state_;
  std::vector<File> files_;
  std::unordered_map<std::string, size_t> file_index_;  // by name
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace sluice
