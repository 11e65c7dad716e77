// The manifest of a checkpoint: what is in it, with sizes and checksums, and where the run stood. FORMAT.md has the
// JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace gptrain {

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
