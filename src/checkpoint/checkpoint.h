// Checkpoints: safetensors files whose slices have their offset in the global tensor, and one manifest, written last.
//
// OUT/checkpoints/step-00000120/
//   rank-00000.safetensors   slices "weight/NAME" and "COLUMN/NAME", for each column of the optimizer's state, of f32
//                            (with bf16-pure weights of bf16, with adamw-8bit codes of u8); each one's box in the
//                            global tensor in __metadata__. Beyond 1 GiB
//                            rank-00000-00000.safetensors and so on
//   tokenizer.json           the data's tokenizer, if it is known and not "bytes"
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

namespace gptrain::inline checkpoint {

// Writes OUT/checkpoints/step-N and replaces an existing one. For commands that run as one process (import, average).
// Slices are streamed, with at most a few MiB of memory beside them. THROWS Error(checkpoint) with the path and the
// system's reason (disk full, no permission); the temporary folder is then removed and older checkpoints are untouched.
void save_checkpoint(const std::filesystem::path& out, const Manifest& manifest, const std::vector<Slice>& slices);

// Do the same by a run, whose ranks share the file system: the first rank begins; then each rank writes its part; then
// the first rank publishes, or discards if a part could not be written. THROW Error(checkpoint) as above; files written
// so far then stay until they are discarded. discard_checkpoint does not throw, and leaves files that it cannot remove.
void begin_checkpoint(const std::filesystem::path& out, int64_t step);
// Returns the part's description for publish_checkpoint. THROWS Error(diverged) if a number is not finite.
std::string write_checkpoint_part(const std::filesystem::path& out, int64_t step, int64_t rank,
                                  const std::vector<Slice>& slices);
// `num_tensors` is the number of global tensors over all parts, each counted once.
void publish_checkpoint(const std::filesystem::path& out, const Manifest& manifest, int64_t num_tensors,
                        const std::vector<std::string>& parts);
void discard_checkpoint(const std::filesystem::path& out, int64_t step);

struct CheckpointInfo {
  std::filesystem::path path;
  int64_t step = 0;
};

// Returns the checkpoints of a run's folder, by their names, lowest step first; empty if there are none or no such
// folder. An interrupted save leaves only a temporary name, so a listed checkpoint without a readable manifest was
// damaged. Reading it throws; no older checkpoint takes its place unasked. THROWS Error(checkpoint) if the folder
// cannot be read.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& out);

// Reads a checkpoint's manifest and checks its fields and the files' sizes. THROWS Error(checkpoint) with the damaged
// file, its fault, and the newest older checkpoint of the same run that is complete.
Manifest read_manifest(const std::filesystem::path& checkpoint);
// Checks headers and the checksums of all bytes as well. THROWS as read_manifest does, and Error(diverged) if numbers
// are not finite.
void verify_checkpoint(const std::filesystem::path& checkpoint);
// Checks the same without reading the tensors' bytes, whose checksums are checked when they are loaded.
Contents verify_structure(const std::filesystem::path& checkpoint);

// Returns the error, its message followed by the path of the newest older sound checkpoint of the same run, if there is
// one. For the folder of a run, it names the newest sound checkpoint there.
Error with_way_out(const Error& error, const std::filesystem::path& checkpoint);

// Returns the tokenizer of the run's data; nullopt if the manifest names none. Its text is empty if the checkpoint has
// no tokenizer.json. THROWS Error(checkpoint) if that file is missing, although the manifest lists it, or has other
// content.
std::optional<TokenizerRecord> read_tokenizer(const std::filesystem::path& checkpoint);

// Fills every slice from the checkpoint's slices, whatever the layout that saved them. A bf16 tensor also fills f32
// slices, exactly. Verifies the checksums of the slices that it reads. THROWS Error(checkpoint) if a tensor is missing,
// has another global shape, is not fully covered, or is f32 for a bf16 slice that does not allow rounding;
// Error(diverged) if numbers are not finite.
void load_slices(const std::filesystem::path& checkpoint, const std::vector<Slice>& slices);
// Does the same for callers that load a checkpoint in several parts. `contents`: from verify_structure.
void load_slices(const Contents& contents, const std::vector<Slice>& slices, NotFinite not_finite = NotFinite::refused);

// Returns all of one tensor, in f32 on the host, by its slices' name ("weight/NAME"). THROWS Error(checkpoint) if there
// is none, or as load_slices does.
std::vector<float> load_tensor(const Contents& contents, const std::string& name, NotFinite not_finite);

// Removes the folders left by interrupted saves. REQUIRES: the caller has locked the run's folder. Returns a warning
// about folders that it cannot remove, else empty.
std::string remove_unfinished_checkpoints(const std::filesystem::path& out);

// Returns true if the manifest can be read and every file that it lists is there and has its size. Does not read the
// files.
bool is_sound_checkpoint(const std::filesystem::path& checkpoint);

// Returns the checkpoints that were set aside because the run went on from an older one (NAME.abandoned), in any
// order; empty if the folder cannot be read.
std::vector<CheckpointInfo> list_abandoned(const std::filesystem::path& out);

// Deletes all checkpoints but the newest `keep_last`, those whose step is a multiple of keep_every (0: none), and the
// last one before the loss rose (last_before_rise), so that a run that diverges keeps a state to go back to.
// Checkpoints that are not sound (see above) are not counted and not deleted. Also deletes unfinished checkpoints, and
// abandoned ones whose steps the run has reached again. Renames a checkpoint to a temporary name first, so that a crash
// never leaves a damaged "complete" checkpoint. Returns a warning about folders that it cannot read or delete, else
// empty.
std::string apply_retention(const std::filesystem::path& out, int64_t keep_last, int64_t keep_every);
// Deletes all abandoned checkpoints. Returns a warning like apply_retention.
std::string remove_abandoned(const std::filesystem::path& out);

// Returns the text of `checkpoint inspect`: step, samples, parameters, samples left out, precision, tokenizer, average,
// files, and a table of tensors with shape and dtype. THROWS Error(checkpoint) if manifest or headers cannot be read.
std::string inspect_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace gptrain::checkpoint
