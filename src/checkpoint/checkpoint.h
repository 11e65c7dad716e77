// Checkpoints: safetensors files whose slices name their place in the global tensor, and one manifest, written last.
//
// OUT/checkpoints/step-00000120/
//   rank-00000.safetensors   slices "weight/NAME" and "COLUMN/NAME", for each column of the optimizer's state, of f32
//                            (with bf16-pure weights of bf16, with adamw-8bit codes of u8); each one's box in the global tensor in __metadata__.
//                            Where they are more than 1 GiB, rank-00000-00000.safetensors and so on
//   tokenizer.json           of the data, where one is known that is not "bytes"
//   manifest.json            version, step, samples, ..., config, files with size and checksum
// FORMAT.md describes both byte by byte.
//
// A checkpoint is complete when its manifest is there: it is written in a temporary folder (".tmp-step-..."), every
// file synced, the manifest last, the folder renamed, its parent synced. A crash at any moment leaves the newest
// complete checkpoint as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loss_scale.h"
#include "checkpoint/boxes.h"
#include "config/run_config.h"
#include "data/sample_order.h"
#include "data/source_record.h"
#include "data/tokenizer/record.h"

namespace gptrain {

// Goes before a tensor's name in the name of its weights, as a column's name does in that of the optimizer's state.
constexpr std::string_view weight_prefix = "weight/";

// A box of one global tensor (true shape, never padding), f32, bf16 or u8, in row-major order at `data`, which the caller
// owns and which lies in `memory`.
struct Slice {
  std::string name;  // "weight/blocks.0.qkv.weight"
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // of the box in the global tensor
  std::vector<int64_t> shape;   // of the box
  void* data = nullptr;
  SliceMemory* memory = nullptr;  // null: the host's
  DType dtype = DType::f32;
  bool rounds = false;  // of bf16 to be filled: from an f32 tensor, too, rounded to nearest
};

// Losses of a run that goes back where they spike (run.rollback), the oldest first.
struct LossHistory {
  std::vector<double> window;  // that the next one is compared with
  std::vector<double> above;   // of the last steps: those too far above these; NaN where one was not finite
};

// Changes with which a run went on from a checkpoint.
struct ResumeRecord {
  int64_t step = 0;  // of that checkpoint
  std::vector<std::string> changes = {};  // one line each: "run.steps: 12 -> 24"
};

// The course of a run so far, which its config alone does not tell.
struct RunRecord {
  std::vector<SourceRecord> sources = {};  // training data; empty in checkpoints of older programs
  std::vector<MixturePhase> mixture = {};  // the whole order's, once a resume has changed it; else empty
  std::vector<ResumeRecord> history = {};
};

// What a checkpoint says about the run beside the tensors.
struct Manifest {
  int64_t step = 0;     // steps done, skipped ones included
  int64_t samples = 0;  // consumed
  int64_t updates = 0;  // steps not skipped
  int64_t skipped = 0;
  int64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  int64_t world_size = 1;
  std::string config;  // show_config text
  std::string build;   // version of the program that wrote it
  // Backend::algorithms of rank 0: a run that goes on with the same ones gets the same bits. Empty on a CPU.
  std::string algorithms;
  std::optional<LossScale> loss_scale = {};  // of the next step, where the run has loss scaling
  // Of the data, where it is known. Its text is saved in tokenizer.json, and not read with the manifest, but for
  // "bytes".
  std::optional<TokenizerRecord> tokenizer = {};
  bool has_tokenizer_file = false;  // as read; saving looks at the text
  // Of a run that goes back where its loss spikes: how often it has, and what it has left out for that, beside
  // data.skip_samples.
  LossHistory losses = {};
  int64_t rollbacks = 0;
  std::vector<SampleRange> left_out = {};
  std::optional<double> loss = {};  // of the last step; nothing: not known, NaN: not finite
  RunRecord run = {};
};

// Writes OUT/checkpoints/step-N. Slices are streamed: at most a few MiB of memory beside them. Throws Error(checkpoint)
// with the path and the system's reason (disk full, no permission); the temporary folder is then removed and older
// checkpoints are untouched. An existing step-N is replaced.
void save_checkpoint(const std::filesystem::path& out, const Manifest& manifest, const std::vector<Slice>& slices);

// The same by several ranks that share the file system: the first one begins; each writes its part once it has begun;
// the first one publishes once all parts are written, or discards if a part could not be. Error(checkpoint) as above;
// what was written then stays until it is discarded.
void begin_checkpoint(const std::filesystem::path& out, int64_t step);
// Returns what the first rank has to know of the part.
std::string write_checkpoint_part(const std::filesystem::path& out, int64_t step, int64_t rank,
                                  const std::vector<Slice>& slices);
// `num_tensors`: global tensors over all parts, each counted once.
void publish_checkpoint(const std::filesystem::path& out, const Manifest& manifest, int64_t num_tensors,
                        const std::vector<std::string>& parts);
void discard_checkpoint(const std::filesystem::path& out, int64_t step);

struct CheckpointInfo {
  std::filesystem::path path;
  int64_t step = 0;
};

// The checkpoints of a run's folder, oldest first, found by reading the folders. A folder that is named as one is one:
// a save that was cut short leaves a temporary name, so that where a manifest is missing or cannot be read, a
// checkpoint was damaged. Who reads it finds that out, and no older one takes its place unasked.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& out);

// Reads and checks a checkpoint: manifest fields, file sizes, headers, checksums. Throws Error(checkpoint) naming the
// damaged file and what is wrong, and the newest older one of the same run that is complete.
Manifest read_manifest(const std::filesystem::path& checkpoint);
void verify_checkpoint(const std::filesystem::path& checkpoint);

// The tokenizer of the run's data with its text, where the checkpoint has it. Error(checkpoint): its file is missing or
// is another one.
std::optional<TokenizerRecord> read_tokenizer(const std::filesystem::path& checkpoint);

// Fills every slice asked for from whichever boxes the checkpoint holds (any layout). A bf16 tensor fills f32 slices,
// too, exactly. Verifies checksums of what it reads. Throws Error(checkpoint) if a tensor is missing, has another
// global shape, is not fully covered, or is f32 where bf16 is asked for (which would round) and the
// slice does not allow that.
void load_slices(const std::filesystem::path& checkpoint, const std::vector<Slice>& slices);

// Removes what a save that was cut short has left, which nobody reads; the caller keeps others out of the folder. Never
// throws for what it cannot remove: returns a warning text, else empty.
std::string remove_unfinished_checkpoints(const std::filesystem::path& out);

// Whether the manifest can be read and every file that it lists is there and has its size. The files are not read.
bool is_sound_checkpoint(const std::filesystem::path& checkpoint);

// What was set aside because the run went on from an older checkpoint (NAME.abandoned).
std::vector<CheckpointInfo> list_abandoned(const std::filesystem::path& out);

// Deletes what retention does not keep: the newest `keep_last` stay, and every step that is a multiple of keep_every
// (0: none). Those that are not sound (see above) neither count nor go. Unfinished ones are removed, and those that were
// set aside and whose steps the run has come to again: their time is over. Deletion first
// renames to a temporary folder, so that a crash never leaves a damaged "complete" checkpoint. Never throws for a
// folder it cannot delete: returns a warning text, else empty.
std::string apply_retention(const std::filesystem::path& out, int64_t keep_last, int64_t keep_every);
// Deletes all that were set aside. The rest as of apply_retention.
std::string remove_abandoned(const std::filesystem::path& out);

// What `checkpoint inspect` prints: step, samples, parameters, what was left out, precision, tokenizer, average, files,
// and a table of tensors with shape and dtype.
std::string inspect_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace gptrain
