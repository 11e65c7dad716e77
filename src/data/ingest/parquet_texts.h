// The texts of a column of a Parquet file, by Arrow's library; in a build without it such files are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace gptrain {

// Reads a file from its first row to its last, in pieces. One thread at a time.
class ParquetTexts {
 public:
  // Begins behind `first_row` rows. Throws Error(data) naming the file where it is damaged, has no such column, or the
  // column is not one of strings; Error(usage) in a build that cannot read it.
  ParquetTexts(std::filesystem::path path, const std::string& column, int64_t first_row);
  ~ParquetTexts();
  ParquetTexts(const ParquetTexts&) = delete;
  ParquetTexts& operator=(const ParquetTexts&) = delete;

  // Appends rows, each with append_row_text() of row_texts.h, until `bytes` has `wanted_bytes` or there are no more. Returns how many.
  // Throws Error(data) naming the file.
  int64_t read(std::string& bytes, size_t wanted_bytes);

  int64_t num_rows() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
