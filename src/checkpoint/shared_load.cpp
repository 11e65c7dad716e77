#include "checkpoint/shared_load.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"

namespace gptrain::inline checkpoint {
namespace {

constexpr int64_t most_received_bytes = int64_t{16} << 20;  // from all ranks at a time, if pieces can be
constexpr int64_t least_piece_bytes = int64_t{64} << 10;    // small enough: none is smaller than this
constexpr int64_t most_piece_bytes = int64_t{1} << 20;

// Returns all boxes of a checkpoint in their order on the disk, so that a box has the same number on all ranks.
std::vector<const StoredSlice*> boxes_in_order(const Contents& contents) {
  std::vector<const StoredSlice*> boxes;
  for (const auto& [name, tensor] : contents.tensors)
    for (const StoredSlice& stored : tensor.boxes) boxes.push_back(&stored);
  std::sort(boxes.begin(), boxes.end(), [](const StoredSlice* a, const StoredSlice* b) {
    return std::pair(a->file, a->entry.offset) < std::pair(b->file, b->entry.offset);
  });
  return boxes;
}

// Table of the boxes that each rank needs, one bit each.
class Needs {
 public:
  Needs(size_t num_boxes, Communicator& group)
      : row_bytes_((num_boxes + 7) / 8),
        rank_(group.rank()),
        own_(row_bytes_),
        all_(row_bytes_ * static_cast<size_t>(group.size())) {}
  void add(size_t box) { own_[box / 8] |= static_cast<uint8_t>(1U << (box % 8)); }
  void exchange(Communicator& group) {
    group.all_gather(own_.data(), all_.data(), static_cast<int64_t>(row_bytes_), DType::u8);
  }
  bool has(int rank, size_t box) const {
    return (all_[static_cast<size_t>(rank) * row_bytes_ + box / 8] >> (box % 8) & 1U) != 0;
  }
  bool is_mine(size_t box) const { return has(rank_, box); }

 private:
  size_t row_bytes_;
  int rank_;
  std::vector<uint8_t> own_, all_;
};

// A rank's boxes, which it reads from front to back in pieces. Every rank tracks the streams of all ranks.
struct Stream {
  std::vector<size_t> boxes;
  size_t next = 0;     // index in `boxes`
  int64_t offset = 0;  // byte offset in that box

  bool is_over() const { return next == boxes.size(); }
};

struct Piece {
  size_t box;
  int64_t offset, bytes;
};

class SharedLoader {
 public:
  SharedLoader(const Contents& contents, std::vector<SliceTransfer> transfers, Communicator& group)
      : contents_(contents),
        group_(group),
        boxes_(boxes_in_order(contents)),
        needs_(boxes_.size(), group),
        streams_(group.size()) {
    std::unordered_map<const StoredSlice*, size_t> number;
    for (size_t box = 0; box < boxes_.size(); ++box) number[boxes_[box]] = box;
    for (SliceTransfer& transfer : transfers) {
      const size_t box = number.at(transfer.stored);
      needs_.add(box);
      transfers_.emplace(box, std::move(transfer));
    }
    needs_.exchange(group_);
    share_out();
  }

  SharedLoad run() {
    std::vector<SliceTransfer> own;
    for (const size_t box : alone_) {
      own.push_back(std::move(transfers_.at(box)));
      result_.read_bytes += boxes_[box]->entry.bytes;
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

  // Assigns each box to a reader: of the ranks that need it, the one with the least to read so far.
  void share_out() {
    const int ranks = group_.size();
    std::vector<int64_t> bytes(streams_.size());
    std::vector<std::pair<size_t, std::vector<int>>> shared;
    for (size_t box = 0; box < boxes_.size(); ++box) {
      std::vector<int> needing;
      for (int rank = 0; rank < ranks; ++rank)
        if (needs_.has(rank, box)) needing.push_back(rank);
      if (needing.size() == 1) {
        bytes[needing[0]] += boxes_[box]->entry.bytes;
        if (needing[0] == group_.rank()) alone_.push_back(box);
      } else if (needing.size() > 1) {
        shared.emplace_back(box, std::move(needing));
      }
    }
    for (const auto& [box, needing] : shared) {
      const int reader =
          *std::min_element(needing.begin(), needing.end(), [&](int a, int b) { return bytes[a] < bytes[b]; });
      bytes[reader] += boxes_[box]->entry.bytes;
      streams_[reader].boxes.push_back(box);
    }
  }

  // Each rank reads a piece, and passes it on to those that need its box.
  void run_round() {
    std::vector<std::optional<Piece>> pieces;
    for (Stream& stream : streams_) pieces.push_back(take_piece(stream));
    const auto me = static_cast<size_t>(group_.rank());
    std::vector<PeerPart> sent(streams_.size()), received(streams_.size());
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      if (rank == me) continue;
      if (pieces[me] && needs_.has(static_cast<int>(rank), pieces[me]->box)) sent[rank] = {0, pieces[me]->bytes};
      if (pieces[rank] && needs_.is_mine(pieces[rank]->box))
        received[rank] = {static_cast<int64_t>(rank) * piece_bytes_, pieces[rank]->bytes};
    }
    if (pieces[me]) guarded([&] { read(*pieces[me]); });
    group_.all_to_all_v(read_.data(), sent, received_.data(), received, DType::u8);
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      if (!pieces[rank] || !needs_.is_mine(pieces[rank]->box)) continue;
      const std::byte* const data = rank == me ? read_.data() : received_.data() + received[rank].first;
      guarded([&] { feed(*pieces[rank], data); });
    }
  }

  void feed(const Piece& piece, const std::byte* data) {
    SliceTransfer& transfer = transfers_.at(piece.box);
    transfer.feed(data, piece.offset, piece.bytes);
    if (piece.offset + piece.bytes == boxes_[piece.box]->entry.bytes) require_finite(contents_, transfer);
  }

  std::optional<Piece> take_piece(Stream& stream) const {
    if (stream.is_over()) return std::nullopt;
    const size_t box = stream.boxes[stream.next];
    const int64_t left = boxes_[box]->entry.bytes - stream.offset;
    const Piece piece{box, stream.offset, std::min(left, piece_bytes_)};
    stream.offset += piece.bytes;
    if (piece.bytes == left) {
      ++stream.next;
      stream.offset = 0;
    }
    return piece;
  }

  void read(const Piece& piece) {
    const StoredSlice& stored = *boxes_[piece.box];
    if (!file_ || file_number_ != stored.file) {
      file_.emplace(contents_.checkpoint / contents_.stored.files[stored.file].name);
      file_number_ = stored.file;
    }
    if (piece.offset == 0) crc_ = 0;
    file_->read(stored.entry.offset + piece.offset, read_.data(), piece.bytes);
    crc_ = crc32c(read_.data(), piece.bytes, crc_);
    result_.read_bytes += piece.bytes;
    if (piece.offset + piece.bytes == stored.entry.bytes) check_box(*file_, stored, crc_);
  }

  const Contents& contents_;
  Communicator& group_;
  const std::vector<const StoredSlice*> boxes_;
  Needs needs_;
  std::unordered_map<size_t, SliceTransfer> transfers_;  // by box
  std::vector<size_t> alone_;                            // boxes that no other rank needs
  std::vector<Stream> streams_;                          // by rank
  int64_t piece_bytes_ = 0;
  std::vector<std::byte> read_, received_;
  std::optional<InputFile> file_;
  size_t file_number_ = 0;
  uint32_t crc_ = 0;  // checksum of the box's bytes read so far
  SharedLoad result_;
};

}  // namespace

SharedLoad load_shared(const Contents& contents, std::vector<SliceTransfer> transfers, Communicator* group) {
  if (group != nullptr && group->size() > 1) return SharedLoader(contents, std::move(transfers), *group).run();
  SharedLoad result;
  for (const SliceTransfer& transfer : transfers) result.read_bytes += transfer.stored->entry.bytes;
  try {
    run_transfers(contents, std::move(transfers));
  } catch (const Error&) {
    result.fault = std::current_exception();
  }
  return result;
}

}  // namespace gptrain::checkpoint
