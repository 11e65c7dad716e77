// Files without names on one or several drives, and where the blocks of pieces of state lie in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace gptrain::inline storage {

// A piece of state, which is read and written whole.
struct StoredPiece {
  std::string name;   // for messages: "unit 3"
  int64_t bytes = 0;  // a multiple of page_bytes
};

// Returns the bytes that pieces take on the disk.
int64_t stored_bytes(const std::vector<StoredPiece>& pieces);

struct StoredFilesOptions {
  std::vector<std::filesystem::path> folders;  // one on each drive; blocks go to all of them in turn
  std::string owner = "rank-0";                // part of the files' names in messages
  std::string purpose = "working files";       // for the message that their space is missing
};

// The files vanish with the object or the process. Each block has a checksum (CRC-32C) in memory.
class StoredFiles {
 public:
  static constexpr int64_t block_bytes = int64_t{4} << 20;

  struct Block {
    size_t file = 0;
    int64_t offset = 0, bytes = 0;
    uint32_t crc = 0;  // checksum of the bytes written last
  };

  // Reserves the space of one file in each folder. THROWS Error(checkpoint) if a folder is missing, cannot be written,
  // lacks the space, or does not allow O_DIRECT.
  StoredFiles(StoredFilesOptions options, std::vector<StoredPiece> pieces);
  ~StoredFiles();
  StoredFiles(const StoredFiles&) = delete;
  StoredFiles& operator=(const StoredFiles&) = delete;

  const std::vector<StoredPiece>& pieces() const { return pieces_; }
  size_t num_blocks(size_t piece) const { return first_block_[piece + 1] - first_block_[piece]; }
  Block& block(size_t piece, size_t number) { return blocks_[first_block_[piece] + number]; }
  const Block& block(size_t piece, size_t number) const { return blocks_[first_block_[piece] + number]; }
  int descriptor(const Block& block) const { return files_[block.file].descriptor; }
  // Returns words for a block in messages, with its file and its piece.
  std::string text_of(size_t piece, size_t number) const;
  // THROWS Error(checkpoint) if the bytes at `data` are not those that were written.
  void check(size_t piece, size_t number, const std::byte* data) const;

  // Returns files with the present content of the first `num_pieces` pieces, which share the space of these files until
  // these are written again. The pieces behind have no content. REQUIRES: no write of the pieces is under way. THROWS
  // Error(checkpoint) if a file system cannot clone.
  std::unique_ptr<StoredFiles> clone(size_t num_pieces) const;
  // Reads a block to memory that begins at a multiple of page_bytes. THROWS Error(checkpoint) if that fails, or as
  // `check`.
  void read(size_t piece, size_t number, std::byte* to) const;

 private:
  struct File {
    int descriptor = -1;
    std::string name;  // for messages
    int64_t bytes = 0;
  };

  StoredFiles(const StoredFiles& original, size_t num_pieces);
  void lay_out();
  void open(size_t file);
  void reserve(size_t file) const;
  void close_all();

  const StoredFilesOptions options_;
  const std::vector<StoredPiece> pieces_;
  std::vector<File> files_;  // by folder
  std::vector<Block> blocks_;
  std::vector<size_t> first_block_;  // by piece
};

// Returns why files in some of the folders cannot be cloned; empty if they can.
std::string clone_obstacle(const std::vector<std::string>& folders);

}  // namespace gptrain::storage
