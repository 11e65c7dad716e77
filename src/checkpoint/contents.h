// What lies in a checkpoint: global tensors, each as boxes in safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/slice.h"

namespace gptrain {

// Of the tensors in a file; one of them is larger only where a single element is.
inline constexpr int64_t usual_part_bytes = int64_t{1} << 30;

// Writes one rank's slices to FOLDER/rank-RRRRR.safetensors, or where they are more than `part_bytes` to parts of at
// most so many, rank-RRRRR-00000.safetensors and so on; returns what the manifest says of these files. A slice that is
// larger than a part is stored as several. A tensor that is one slice is stored under its own name, another slice as
// NAME@OFFSET. Throws Error(checkpoint), also for slices that do not lie in their tensor, overlap, or disagree on its
// shape.
std::vector<FileRecord> write_rank_files(const std::filesystem::path& folder, int64_t rank,
                                         const std::vector<Slice>& slices, int64_t part_bytes = usual_part_bytes);

struct StoredBox {
  size_t file = 0;  // in the manifest's list
  SafetensorsEntry entry;
  Box box;
  uint32_t crc32c = 0;  // of its data
};

struct StoredTensor {
  std::vector<int64_t> global_shape;
  DType dtype = DType::f32;      // or bf16 or u8
  std::vector<StoredBox> boxes;  // disjoint; by file, then by offset in the file
};

struct Contents {
  std::filesystem::path checkpoint;
  StoredManifest stored;
  std::map<std::string, StoredTensor> tensors;
};

// Reads manifest and headers and checks them against each other: everything but the tensors' bytes. Throws
// Error(checkpoint) naming the damaged file.
Contents read_contents(const std::filesystem::path& checkpoint);

// The same as read_contents in parts, for ranks that read a share of the headers each and pass them on, so that no rank
// opens the files of all: the manifest; the headers of every `ranks`-th file from the `rank`-th on, one behind the
// other; and the contents, from what each rank has read.
StoredManifest read_named_manifest(const std::filesystem::path& checkpoint);
std::string read_headers(const std::filesystem::path& checkpoint, const StoredManifest& stored, int rank, int ranks);
Contents contents_of(const std::filesystem::path& checkpoint, StoredManifest stored,
                     const std::vector<std::string>& headers);

// Reads one box in pieces and throws Error(checkpoint) if its bytes do not have the manifest's checksum. `file` is the
// open file that holds it.
void read_box(const InputFile& file, const StoredBox& stored, const SafetensorsPiece& piece);
// Error(checkpoint) unless `crc` is the checksum of the box.
void check_box(const InputFile& file, const StoredBox& stored, uint32_t crc);

// Loads the manifest and checks that every file it lists is there and has its size.
StoredManifest read_manifest_and_sizes(const std::filesystem::path& checkpoint);

// Number of the tensor's elements that lie in the checkpoint and in `wanted`.
int64_t covered_elements(const StoredTensor& tensor, const Box& wanted);

}  // namespace gptrain
