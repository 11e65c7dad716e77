#include "planner/measure_storage.h"

#include <algorithm>
#include <memory>

#include "base/event.h"
#include "ops/backend.h"
#include "storage/working_files.h"

namespace gptrain::inline planner {
namespace {

double seconds_of_byte(const MeasuredDisk& disk) {
  return 1 / disk.read_bytes_per_second + 1 / disk.write_bytes_per_second;
}

// Pieces as large as a unit of a small model.
std::vector<StoredPiece> pieces_of(int64_t bytes) {
  constexpr int64_t piece_bytes = 8 * WorkingFiles::block_bytes;
  std::vector<StoredPiece> pieces;
  for (int64_t at = 0; at < bytes; at += piece_bytes) {
    const int64_t left = std::min(piece_bytes, bytes - at);
    pieces.push_back({"measured piece", (left + page_bytes - 1) / page_bytes * page_bytes});
  }
  return pieces;
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
      const auto seconds_of_all = [&](bool writes) {
        const double start = steady_seconds();
        std::vector<WorkingFiles::Ticket> tickets;
        std::byte* data = memory->data();
        for (size_t i = 0; i < pieces.size(); ++i) {
          tickets.push_back(writes ? files.begin_write(i, data) : files.begin_read(i, data));
          data += pieces[i].bytes;
        }
        for (const WorkingFiles::Ticket ticket : tickets) files.wait(ticket);
        return steady_seconds() - start;
      };
      seconds_of_all(true);  // the file system converts reserved space when it is first written
      MeasuredDisk& row = result.rows.emplace_back();
      const double write_seconds = seconds_of_all(true);
      row = {.read_bytes_per_second = bytes / seconds_of_all(false),
             .write_bytes_per_second = bytes / write_seconds,
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
