// The manifest of a checkpoint: what is in it, with sizes and checksums, and where the run stood. FORMAT.md has the
// JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/loss_scale.h"
#include "config/run_config.h"
#include "data/tokenizer/record.h"

namespace gptrain {

// Losses of a run that goes back where they spike (run.rollback), the oldest first.
struct LossHistory {
  std::vector<double> window;  // that the next one is compared with
  std::vector<double> above;   // of the last steps: those too far above these; NaN where one was not finite
};

// How far a run has come.
struct RunProgress {
  int64_t step = 0;     // steps done, skipped ones included
  int64_t samples = 0;  // consumed
  int64_t updates = 0;  // steps not skipped
  int64_t skipped = 0;
  int64_t skipped_in_a_row = 0;
  LossHistory losses = {};
  int64_t rollbacks = 0;                   // how often the run has gone back (run.rollback)
  std::vector<SampleRange> left_out = {};  // samples skipped for that, beside data.skip_samples
};

// What a checkpoint says about the run beside the tensors.
struct Manifest {
  RunProgress progress = {};
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
};

// One safetensors file of a checkpoint.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  uint32_t header_crc32c = 0;                     // of all bytes before the first slice
  std::map<std::string, uint32_t> slices_crc32c;  // of each slice's bytes, by its key in the file
};

struct StoredManifest {
  Manifest manifest;
  int64_t num_tensors = 0;  // global tensors, not slices
  std::vector<FileRecord> files;
};

// A rank's files as text, for the rank that writes the manifest. parse_file_records throws Error(checkpoint).
std::string format_file_records(const std::vector<FileRecord>& records);
std::vector<FileRecord> parse_file_records(const std::string& text);

// JSON that ends with the CRC-32C of all that stands before it. Throws Error(checkpoint) for what cannot be
// read again: text that is not UTF-8, a negative count.
std::string format_manifest(const StoredManifest& stored);

// Writes CHECKPOINT/manifest.json, durably.
void write_manifest(const std::filesystem::path& checkpoint, const StoredManifest& stored);

// Reads CHECKPOINT/manifest.json and checks its checksum, its format version and every field. Throws Error(checkpoint).
StoredManifest load_manifest(const std::filesystem::path& checkpoint);

}  // namespace gptrain
