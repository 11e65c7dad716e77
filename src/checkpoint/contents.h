// The contents of a checkpoint: global tensors, each stored as slices in safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/finite.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/slice.h"

namespace gptrain::inline checkpoint {

// Most bytes of tensors in a file, unless a single element is larger.
inline constexpr int64_t usual_part_bytes = int64_t{1} << 30;

// Writes one rank's slices to FOLDER/rank-RRRRR.safetensors, or, if they have more than `part_bytes`, to parts of at
// most that size, rank-RRRRR-00000.safetensors and so on. Returns the manifest's records of these files. A slice that
// is larger than a part is stored as several slices. A slice that is a whole tensor is stored under the tensor's name,
// any other as NAME@OFFSET. THROWS Error(checkpoint), also for slices that do not lie in their tensor, overlap, or
// disagree on its shape. THROWS Error(diverged) at the first slice with numbers that are not finite, if those are
// refused.
std::vector<FileRecord> write_rank_files(const std::filesystem::path& folder, int64_t rank,
                                         const std::vector<Slice>& slices, int64_t part_bytes = usual_part_bytes,
                                         NotFinite not_finite = NotFinite::refused);

// Returns the records that write_rank_files would return, with 0 for each checksum. Reads no data, writes nothing.
std::vector<FileRecord> plan_rank_files(int64_t rank, const std::vector<Slice>& slices,
                                        int64_t part_bytes = usual_part_bytes);

struct Contents {
  std::filesystem::path checkpoint;
  StoredManifest stored;
  // The slices of each tensor: at least one, disjoint, of one global shape and dtype; by file, then by offset in the
  // file.
  std::map<std::string, std::vector<Slice>> tensors;
};

// Reads the manifest and the headers, but not the tensors' bytes, and checks them against each other. THROWS
// Error(checkpoint) with the damaged file's name.
Contents read_contents(const std::filesystem::path& checkpoint);

// The parts of read_contents, for ranks that each read a share of the headers and exchange them, so that no rank opens
// all files. All THROW as read_contents. Reads the manifest, and checks that its step is that of the folder's name.
StoredManifest read_named_manifest(const std::filesystem::path& checkpoint);
// Returns the headers of every `ranks`-th file from file number `rank` on, concatenated; checks the files' sizes.
std::string read_headers(const std::filesystem::path& checkpoint, const StoredManifest& stored, int rank, int ranks);
// `headers`: the results of read_headers on all ranks, by rank.
Contents contents_of(const std::filesystem::path& checkpoint, StoredManifest stored,
                     const std::vector<std::string>& headers);

// Reads a slice of a checkpoint in pieces from `file`, the open file that holds it. THROWS Error(checkpoint) if its
// bytes do not have the manifest's checksum.
void read_slice(const InputFile& file, const Slice& slice, const SafetensorsPiece& piece);
// THROWS Error(checkpoint) unless `crc` is the checksum of the slice.
void check_slice(const InputFile& file, const Slice& slice, uint32_t crc);

// Loads the manifest and checks that every file it lists is there and has its size. THROWS as read_contents.
StoredManifest read_manifest_and_sizes(const std::filesystem::path& checkpoint);

// Returns the number of elements of `wanted` that a tensor's slices hold.
int64_t covered_elements(const std::vector<Slice>& slices, const Box& wanted);

}  // namespace gptrain::checkpoint
