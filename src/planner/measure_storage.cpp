#include "planner/measure_storage.h"

#include <algorithm>
#include <memory>

#include "base/event.h"
#include "ops/backend.h"
#include "storage/working_files.h"

namespace gptrain::inline planner {
namespace {

// Seconds to read and to write a byte alone, and again both at once.
double seconds_of_byte(const MeasuredDisk& disk) {
  return 1 / disk.read_bytes_per_second + 1 / disk.write_bytes_per_second + 2 / disk.both_bytes_per_second;
}

// An even number of pieces as large as a unit of a small model, or smaller.
std::vector<StoredPiece> pieces_of(int64_t bytes) {
  constexpr int64_t most_bytes = 8 * WorkingFiles::block_bytes;
  const int64_t pairs = (bytes + 2 * most_bytes - 1) / (2 * most_bytes);
  const int64_t pages = (bytes + 2 * pairs * page_bytes - 1) / (2 * pairs * page_bytes);
  return std::vector<StoredPiece>(static_cast<size_t>(2 * pairs), {"measured piece", pages * page_bytes});
}

// Times transfers of all pieces of working files.
class Timer {
 public:
  Timer(WorkingFiles& files, std::byte* data) : files_(files), data_(data), start_(steady_seconds()) {}

  void begin(size_t piece, bool writes) {
    std::byte* const data = data_ + static_cast<int64_t>(piece) * files_.pieces()[piece].bytes;
    tickets_.push_back(writes ? files_.begin_write(piece, data) : files_.begin_read(piece, data));
  }
  double seconds() {
    for (const WorkingFiles::Ticket ticket : tickets_) files_.wait(ticket);
    tickets_.clear();
    return steady_seconds() - start_;
  }

 private:
  WorkingFiles& files_;
  std::byte* const data_;
  const double start_;
  std::vector<WorkingFiles::Ticket> tickets_;
};

double seconds_of_all(WorkingFiles& files, std::byte* data, bool writes) {
  Timer timer(files, data);
  for (size_t i = 0; i < files.pieces().size(); ++i) timer.begin(i, writes);
  return timer.seconds();
}

// Writes each half of the pieces while the other half is read.
double seconds_of_both(WorkingFiles& files, std::byte* data) {
  const size_t half = files.pieces().size() / 2;
  double seconds = 0;
  for (const bool second : {false, true}) {
    Timer timer(files, data);
    for (size_t i = 0; i < half; ++i) {
      timer.begin(i, !second);
      timer.begin(half + i, second);
    }
    seconds += timer.seconds();
  }
  return seconds;
}

}  // namespace

StorageResult measure_storage(const StorageOptions& options, const std::function<void(const MeasuredDisk&)>& show) {
  StorageResult result;
  const auto backend = make_cpu_backend(1);
  const std::vector<StoredPiece> pieces = pieces_of(options.bytes);
  const auto bytes = static_cast<double>(stored_bytes(pieces));
  const std::unique_ptr<DeviceMemory> memory = backend->allocate(stored_bytes(pieces));
  for (int64_t at = 0; at < memory->bytes(); at += 8) {
    const uint64_t value = static_cast<uint64_t>(at) * 0x9E3779B97F4A7C15U;
    backend->upload(memory->data() + at, &value, sizeof value);
  }
  for (const int64_t size : options.transfer_bytes) {
    for (const int depth : options.depths) {
      WorkingFiles files({.folders = options.folders, .owner = "bench", .depth = depth, .transfer_bytes = size},
                         pieces);
      result.method = files.method();
      std::byte* const data = memory->data();
      files.lend({{data, static_cast<size_t>(memory->bytes())}});
      seconds_of_all(files, data, true);  // the file system converts reserved space when it is first written
      MeasuredDisk& row = result.rows.emplace_back();
      const double write_seconds = seconds_of_all(files, data, true);
      row = {.read_bytes_per_second = bytes / seconds_of_all(files, data, false),
             .write_bytes_per_second = bytes / write_seconds,
             .both_bytes_per_second = 2 * bytes / seconds_of_both(files, data),
             .transfer_bytes = size,
             .depth = depth};
      if (show) show(row);
    }
  }
  return result;
}

MeasuredDisk best_of(const std::vector<MeasuredDisk>& rows) {
  double least = seconds_of_byte(rows.front());
  for (const MeasuredDisk& row : rows) least = std::min(least, seconds_of_byte(row));
  MeasuredDisk best;
  for (const MeasuredDisk& row : rows) {
    if (seconds_of_byte(row) <= 1.02 * least && (best.depth == 0 || row.depth < best.depth)) best = row;
  }
  return best;
}

}  // namespace gptrain::planner
