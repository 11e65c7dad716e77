// Checkpoints: safetensors files whose slices name their place in the global tensor, and one manifest, written last.
//
// OUT/checkpoints/step-00000120/
//   rank-00000.safetensors   slices "weight/NAME" and "COLUMN/NAME", for each column of the optimizer's state, of f32
//                            (with bf16-pure weights of bf16, with adamw-8bit codes of u8); each one's box in the
//                            global tensor in __metadata__. Where they are more than 1 GiB,
//                            rank-00000-00000.safetensors and so on
//   tokenizer.json           of the data, where one is known that is not "bytes"
//   manifest.json            version, step, samples, ..., config, files with size and checksum
// FORMAT.md describes both byte by byte.
//
// A checkpoint is complete when its manifest is there: it is written in a temporary folder (".tmp-step-..."), every
// file synced, the manifest last, the folder renamed, its parent synced. A crash at any moment leaves the newest
// complete checkpoint as it was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/contents.h"
#include "checkpoint/manifest.h"
#include "checkpoint/slice.h"
#include "data/tokenizer/record.h"

namespace gptrain {

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
// The same, but for the checksums of the tensors' bytes, which are not read: whoever loads them checks those.
Contents verify_structure(const std::filesystem::path& checkpoint);

// The error, and which other checkpoint of the same run there is: the newest older one that is sound.
Error with_way_out(const Error& error, const std::filesystem::path& checkpoint);

// The tokenizer of the run's data with its text, where the checkpoint has it. Error(checkpoint): its file is missing or
// is another one.
std::optional<TokenizerRecord> read_tokenizer(const std::filesystem::path& checkpoint);

// Fills every slice asked for from whichever boxes the checkpoint holds (any layout). A bf16 tensor fills f32 slices,
// too, exactly. Verifies checksums of what it reads. Throws Error(checkpoint) if a tensor is missing, has another
// global shape, is not fully covered, or is f32 where bf16 is asked for (which would round) and the
// slice does not allow that.
void load_slices(const std::filesystem::path& checkpoint, const std::vector<Slice>& slices);
// The same for callers that load a checkpoint in several parts.
void load_slices(const Contents& contents, const std::vector<Slice>& slices);

// All of one tensor, in f32; Error(checkpoint) if there is none of that name.
std::vector<float> load_tensor(const Contents& contents, const std::string& name);

// Removes what a save that was cut short has left, which nobody reads; the caller keeps others out of the folder. Never
// throws for what it cannot remove: returns a warning text, else empty.
std::string remove_unfinished_checkpoints(const std::filesystem::path& out);

// Whether the manifest can be read and every file that it lists is there and has its size. The files are not read.
bool is_sound_checkpoint(const std::filesystem::path& checkpoint);

// What was set aside because the run went on from an older checkpoint (NAME.abandoned).
std::vector<CheckpointInfo> list_abandoned(const std::filesystem::path& out);

// Deletes what retention does not keep: the newest `keep_last` stay, and every step that is a multiple of keep_every
// (0: none). Those that are not sound (see above) neither count nor go. Unfinished ones are removed, and those that
// were set aside and whose steps the run has come to again: their time is over. Deletion first renames to a temporary
// folder, so that a crash never leaves a damaged "complete" checkpoint. Never throws for a folder it cannot delete:
// returns a warning text, else empty.
std::string apply_retention(const std::filesystem::path& out, int64_t keep_last, int64_t keep_every);
// Deletes all that were set aside. The rest as of apply_retention.
std::string remove_abandoned(const std::filesystem::path& out);

// What `checkpoint inspect` prints: step, samples, parameters, what was left out, precision, tokenizer, average, files,
// and a table of tensors with shape and dtype.
std::string inspect_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace gptrain
