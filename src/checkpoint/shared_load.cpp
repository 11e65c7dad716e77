#include "checkpoint/shared_load.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"

namespace gptrain::inline checkpoint {
namespace {

constexpr int64_t most_received_bytes = int64_t{16} << 20;  // by a rank at a time, unless pieces are least_piece_bytes
constexpr int64_t least_piece_bytes = int64_t{64} << 10;    // no piece is smaller, but the last of a slice
constexpr int64_t most_piece_bytes = int64_t{1} << 20;

// Returns all slices of a checkpoint in their order on the disk, so that a slice has the same number on all ranks.
std::vector<const Slice*> slices_in_order(const Contents& contents) {
  std::vector<const Slice*> stored;
  for (const auto& [name, slices] : contents.tensors)
    for (const Slice& slice : slices) stored.push_back(&slice);
  std::sort(stored.begin(), stored.end(), [](const Slice* a, const Slice* b) {
    return std::pair(a->file, a->file_offset) < std::pair(b->file, b->file_offset);
  });
  return stored;
}

// Table of the slices that each rank needs, one bit each.
class Needs {
 public:
  Needs(size_t num_slices, Communicator& group)
      : row_bytes_((num_slices + 7) / 8),
        rank_(group.rank()),
        own_(row_bytes_),
        all_(row_bytes_ * static_cast<size_t>(group.size())) {}
  void add(size_t slice) { own_[slice / 8] |= static_cast<uint8_t>(1U << (slice % 8)); }
  void exchange(Communicator& group) {
    group.all_gather(own_.data(), all_.data(), static_cast<int64_t>(row_bytes_), DType::u8);
  }
  bool has(int rank, size_t slice) const {
    return (all_[static_cast<size_t>(rank) * row_bytes_ + slice / 8] >> (slice % 8) & 1U) != 0;
  }
  bool is_mine(size_t slice) const { return has(rank_, slice); }

 private:
  size_t row_bytes_;
  int rank_;
  std::vector<uint8_t> own_, all_;
};

// A rank's slices, which it reads from front to back in pieces. Every rank tracks the streams of all ranks.
struct Stream {
  std::vector<size_t> slices;
  size_t next = 0;     // index in `slices`
  int64_t offset = 0;  // byte offset in that slice

  bool is_over() const { return next == slices.size(); }
};

struct Piece {
  size_t slice;
  int64_t offset, bytes;
};

class SharedLoader {
 public:
  SharedLoader(const Contents& contents, std::vector<SliceTransfer> transfers, Communicator& group)
      : contents_(contents),
        group_(group),
        slices_(slices_in_order(contents)),
        needs_(slices_.size(), group),
        streams_(group.size()) {
    std::unordered_map<const Slice*, size_t> number;
    for (size_t slice = 0; slice < slices_.size(); ++slice) number[slices_[slice]] = slice;
    for (SliceTransfer& transfer : transfers) {
      const size_t slice = number.at(transfer.stored);
      needs_.add(slice);
      transfers_.emplace(slice, std::move(transfer));
    }
    needs_.exchange(group_);
    share_out();
  }

  SharedLoad run() {
    std::vector<SliceTransfer> own;
    for (const size_t slice : alone_) {
      own.push_back(std::move(transfers_.at(slice)));
      result_.read_bytes += slices_[slice]->bytes();
    }
    guarded([&] { run_transfers(contents_, std::move(own)); });
    const int64_t share = most_received_bytes / group_.size() / 8 * 8;
    piece_bytes_ = std::clamp(share, least_piece_bytes, most_piece_bytes);
    read_.resize(piece_bytes_);
    received_.resize(static_cast<size_t>(piece_bytes_) * streams_.size());
    while (!std::all_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.is_over(); }))
      run_round();
    return std::move(result_);
  }

 private:
  // Keeps a fault for later, because the other ranks wait for this rank's data.
  template <typename Work>
  void guarded(const Work& work) {
    if (result_.fault) return;
    try {
      work();
    } catch (const Error&) {
      result_.fault = std::current_exception();
    }
  }

  // Assigns each slice to a reader: of the ranks that need it, the one with the least to read so far.
  void share_out() {
    const int ranks = group_.size();
    std::vector<int64_t> bytes(streams_.size());
    std::vector<std::pair<size_t, std::vector<int>>> shared;
    for (size_t slice = 0; slice < slices_.size(); ++slice) {
      std::vector<int> needing;
      for (int rank = 0; rank < ranks; ++rank)
        if (needs_.has(rank, slice)) needing.push_back(rank);
      if (needing.size() == 1) {
        bytes[needing[0]] += slices_[slice]->bytes();
        if (needing[0] == group_.rank()) alone_.push_back(slice);
      } else if (needing.size() > 1) {
        shared.emplace_back(slice, std::move(needing));
      }
    }
    for (const auto& [slice, needing] : shared) {
      const int reader =
          *std::min_element(needing.begin(), needing.end(), [&](int a, int b) { return bytes[a] < bytes[b]; });
      bytes[reader] += slices_[slice]->bytes();
      streams_[reader].slices.push_back(slice);
    }
  }

  // Each rank reads a piece, and passes it on to those that need its slice.
  void run_round() {
    std::vector<std::optional<Piece>> pieces;
    for (Stream& stream : streams_) pieces.push_back(take_piece(stream));
    const auto me = static_cast<size_t>(group_.rank());
    std::vector<PeerPart> sent(streams_.size()), received(streams_.size());
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      if (rank == me) continue;
      if (pieces[me] && needs_.has(static_cast<int>(rank), pieces[me]->slice)) sent[rank] = {0, pieces[me]->bytes};
      if (pieces[rank] && needs_.is_mine(pieces[rank]->slice))
        received[rank] = {static_cast<int64_t>(rank) * piece_bytes_, pieces[rank]->bytes};
    }
    if (pieces[me]) guarded([&] { read(*pieces[me]); });
    group_.all_to_all_v(read_.data(), sent, received_.data(), received, DType::u8);
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      if (!pieces[rank] || !needs_.is_mine(pieces[rank]->slice)) continue;
      const std::byte* const data = rank == me ? read_.data() : received_.data() + received[rank].first;
      guarded([&] { feed(*pieces[rank], data); });
    }
  }

  void feed(const Piece& piece, const std::byte* data) {
    SliceTransfer& transfer = transfers_.at(piece.slice);
    transfer.feed(data, piece.offset, piece.bytes);
    if (piece.offset + piece.bytes == slices_[piece.slice]->bytes()) require_finite(contents_, transfer);
  }

  std::optional<Piece> take_piece(Stream& stream) const {
    if (stream.is_over()) return std::nullopt;
    const size_t slice = stream.slices[stream.next];
    const int64_t left = slices_[slice]->bytes() - stream.offset;
    const Piece piece{slice, stream.offset, std::min(left, piece_bytes_)};
    stream.offset += piece.bytes;
    if (piece.bytes == left) {
      ++stream.next;
      stream.offset = 0;
    }
    return piece;
  }

  void read(const Piece& piece) {
    const Slice& stored = *slices_[piece.slice];
    if (!file_ || file_number_ != stored.file) {
      file_.emplace(contents_.checkpoint / contents_.stored.files[stored.file].name);
      file_number_ = stored.file;
    }
    if (piece.offset == 0) crc_ = 0;
    file_->read(stored.file_offset + piece.offset, read_.data(), piece.bytes);
    crc_ = crc32c(read_.data(), piece.bytes, crc_);
    result_.read_bytes += piece.bytes;
    if (piece.offset + piece.bytes == stored.bytes()) check_slice(*file_, stored, crc_);
  }

  const Contents& contents_;
  Communicator& group_;
  const std::vector<const Slice*> slices_;
  Needs needs_;
  std::unordered_map<size_t, SliceTransfer> transfers_;  // by slice
  std::vector<size_t> alone_;                            // slices that no other rank needs
  std::vector<Stream> streams_;                          // by rank
  int64_t piece_bytes_ = 0;
  std::vector<std::byte> read_, received_;
  std::optional<InputFile> file_;
  size_t file_number_ = 0;
  uint32_t crc_ = 0;  // checksum of the slice's bytes read so far
  SharedLoad result_;
};

}  // namespace

SharedLoad load_shared(const Contents& contents, std::vector<SliceTransfer> transfers, Communicator* group) {
  if (group != nullptr && group->size() > 1) return SharedLoader(contents, std::move(transfers), *group).run();
  SharedLoad result;
  for (const SliceTransfer& transfer : transfers) result.read_bytes += transfer.stored->bytes();
  try {
    run_transfers(contents, std::move(transfers));
  } catch (const Error&) {
    result.fault = std::current_exception();
  }
  return result;
}

}  // namespace gptrain::checkpoint
