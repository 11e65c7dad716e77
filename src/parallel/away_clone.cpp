#include "parallel/away_clone.h"

#include <algorithm>
#include <utility>

#include "parallel/away_pieces.h"

namespace gptrain::inline parallel {
namespace {

int64_t most_blocks(const ParameterStore& parameters) { return std::ssize(parameters.columns()) + 1; }

}  // namespace

AwayClone::AwayClone(const ParameterStore& parameters, std::unique_ptr<StoredFiles> files, std::span<std::byte> memory)
    : parameters_(parameters),
      files_(std::move(files)),
      memory_(memory),
      blocks_(static_cast<size_t>(most_blocks(parameters))) {}

int64_t AwayClone::memory_bytes(const ParameterStore& parameters) {
  const std::vector<StoredPiece> pieces = stored_pieces(parameters);
  int64_t largest = 0;
  for (size_t piece = 0; piece < num_saved_pieces(parameters); ++piece)
    largest = std::max(largest, pieces[piece].bytes);
  return most_blocks(parameters) * std::min(largest, StoredFiles::block_bytes);
}

// Returns the block, after reading it in place of the one whose last use is the oldest if it is not there.
std::span<const std::byte> AwayClone::find(size_t piece, size_t number) {
  auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& other) {
    return other.last_use > 0 && other.piece == piece && other.number == number;
  });
  const bool is_there = block != blocks_.end();
  if (!is_there)
    block = std::min_element(blocks_.begin(), blocks_.end(),
                             [](const Block& a, const Block& b) { return a.last_use < b.last_use; });
  const size_t each = memory_.size() / blocks_.size();
  std::byte* const data = memory_.data() + static_cast<size_t>(block - blocks_.begin()) * each;
  if (!is_there) {
    *block = {};
    files_->read(piece, number, data);
  }
  *block = {.piece = piece, .number = number, .last_use = ++uses_};
  return {data, static_cast<size_t>(files_->block(piece, number).bytes)};
}

void AwayClone::read(const void* address, int64_t bytes, const std::function<void(const std::byte*, int64_t)>& take) {
  const StateLayout& layout = parameters_.state_layout();
  const auto [unit, offset] = layout.find_away(offset_away(address));
  const int64_t weights = layout.part_offset(AwayPart::weights, unit);
  const AwayPart part = offset < weights ? AwayPart::state : AwayPart::weights;
  int64_t at = part == AwayPart::state ? offset : offset - weights;
  for (const int64_t end = at + bytes; at < end;) {
    const std::span<const std::byte> block =
        find(stored_piece(parameters_, part, unit), static_cast<size_t>(at / StoredFiles::block_bytes));
    const int64_t in_block = at % StoredFiles::block_bytes;
    const int64_t count = std::min(end - at, std::ssize(block) - in_block);
    take(block.data() + in_block, count);
    at += count;
  }
}

}  // namespace gptrain::parallel
