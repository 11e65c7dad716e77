// The texts in a column of a Parquet file, read with Arrow's library; a build without it refuses such files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace gptrain::inline data {

// Reads a file from the first row to the last, in pieces. Not thread-safe.
class ParquetTexts {
 public:
  // Starts after `first_row` rows. Throws Error(data), with the file's name, if the file is damaged or has no such
  // column of strings; Error(usage) in a build that cannot read it.
  ParquetTexts(std::filesystem::path path, const std::string& column, int64_t first_row);
  ~ParquetTexts();
  ParquetTexts(const ParquetTexts&) = delete;
  ParquetTexts& operator=(const ParquetTexts&) = delete;

  // Appends rows, each with append_row_text() of row_texts.h, until `bytes` has `wanted_bytes` or the file ends.
  // Returns the number of rows. Throws Error(data) with the file's name.
  int64_t read(std::string& bytes, size_t wanted_bytes);

  int64_t num_rows() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
