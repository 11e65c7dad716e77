// Measures the speed of working files (storage/working_files.h) by size and number of transfers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "machine/measured_machine.h"

namespace gptrain::inline planner {

struct StorageOptions {
  std::vector<std::filesystem::path> folders;  // one on each drive
  int64_t bytes = int64_t{256} << 20;          // bytes that are written and read for each row
  std::vector<int64_t> transfer_bytes = {256 << 10, 1 << 20, 4 << 20};
  std::vector<int> depths = {1, 4, 16, 32};
};

struct StorageResult {
  std::vector<MeasuredDisk> rows;
  std::string method;  // WorkingFiles::method
};

// Writes the bytes, reads them back, and does both at once, with each size and number of transfers, as a step does,
// checksums included. Calls `show`, if given, with each row. THROWS Error(checkpoint) as WorkingFiles.
StorageResult measure_storage(const StorageOptions& options, const std::function<void(const MeasuredDisk&)>& show = {});

// Returns the row in which reading and writing a byte, each alone and both at once, takes the least time, with the
// fewest transfers among those that take at most 2% more.
MeasuredDisk best_of(const std::vector<MeasuredDisk>& rows);

}  // namespace gptrain::planner
