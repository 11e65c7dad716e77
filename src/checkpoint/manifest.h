// The manifest of a checkpoint: its files, with sizes and checksums, and the run's progress. FORMAT.md has the JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/loss_scale.h"
#include "config/run_config.h"
#include "data/sample_order.h"
#include "data/source_record.h"
#include "data/tokenizer/record.h"

namespace gptrain::inline checkpoint {

// Losses of a run that goes back where they spike (run.rollback), the oldest first.
struct LossHistory {
  std::vector<double> window;  // losses that the next loss is compared with
  std::vector<double> above;   // high losses of the last steps in a row; NaN: not finite
};

// How far a run has come.
struct RunProgress {
  int64_t step = 0;     // steps done, skipped ones included
  int64_t samples = 0;  // samples consumed
  int64_t updates = 0;  // steps not skipped
  int64_t skipped = 0;
  int64_t skipped_in_a_row = 0;
  LossHistory losses = {};
  int64_t rollbacks = 0;                   // how often the run has gone back (run.rollback)
  std::vector<SampleRange> left_out = {};  // samples skipped for that, beside data.skip_samples
  std::optional<double> loss = {};         // loss of the last step; none: not known, NaN: not finite
  std::optional<double> lowest_loss = {};  // lowest finite `loss` of the run's checkpoints; none: not known
};

// Changes with which a run went on from a checkpoint.
struct ResumeRecord {
  int64_t step = 0;                       // step of that checkpoint
  std::vector<std::string> changes = {};  // one line each: "run.steps: 12 -> 24"
};

// The course of a run so far, as far as its config does not tell it.
struct RunRecord {
  std::vector<SourceRecord> sources = {};     // training data; empty in checkpoints of older programs
  std::vector<SourceRecord> validation = {};  // validation data
  std::vector<MixturePhase> mixture = {};     // mixture of the whole order once a resume has changed it; else empty
  std::vector<ResumeRecord> history = {};
};

// Facts about the run that a checkpoint holds beside the tensors.
struct Manifest {
  RunProgress progress = {};
  uint64_t seed = 0;
  int64_t world_size = 1;
  std::string config;  // show_config text
  std::string build;   // version of the program that wrote it
  // Backend::algorithms of rank 0: a run that resumes with the same ones gets the same bits. Empty on a CPU.
  std::string algorithms;
  std::optional<LossScale> loss_scale = {};  // scale of the next step; none: no loss scaling
  std::vector<float> amax_history = {};      // TrainingStep::amax_history: numbers of bf16
  // Tokenizer of the data; none: not known. Its text is saved in tokenizer.json and not read with the manifest, except
  // for "bytes".
  std::optional<TokenizerRecord> tokenizer = {};
  bool has_tokenizer_file = false;  // set by reading; saving decides by the text
  RunRecord run = {};
};

// One safetensors file of a checkpoint.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  uint32_t header_crc32c = 0;                     // checksum of all bytes before the first slice
  std::map<std::string, uint32_t> slices_crc32c;  // checksum of each slice, by its key in the file
};

struct StoredManifest {
  Manifest manifest;
  int64_t num_tensors = 0;  // global tensors, not slices
  std::vector<FileRecord> files;
};

// Converts the records of a rank's files to text, for the rank that writes the manifest, and back. parse_file_records
// THROWS Error(checkpoint).
std::string format_file_records(const std::vector<FileRecord>& records);
std::vector<FileRecord> parse_file_records(const std::string& text);

// Returns JSON that ends with the CRC-32C of all bytes before it. THROWS Error(checkpoint) for values that cannot be
// read again: text that is not UTF-8, a negative count.
std::string format_manifest(const StoredManifest& stored);

// Writes CHECKPOINT/manifest.json, durably.
void write_manifest(const std::filesystem::path& checkpoint, const StoredManifest& stored);

// Reads CHECKPOINT/manifest.json and checks its checksum, its format version and every field. Throws Error(checkpoint).
StoredManifest load_manifest(const std::filesystem::path& checkpoint);

}  // namespace gptrain::checkpoint
