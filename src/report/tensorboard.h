// Writes TensorBoard event files without TensorBoard: framed records with the few protobuf fields that scalars need.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/output_file.h"

namespace gptrain::inline report {

// Writes one new event file in `folder`, named so that TensorBoard reads it after the files already there. The file
// tells TensorBoard to forget all events of steps after `resume_step`; -1: all events. REQUIRES: the folder exists.
// THROWS Error(usage) if the file cannot be written.
class TensorBoardWriter {
 public:
  struct Scalar {
    std::string_view tag;
    double value;  // stored as float32: the format has no other
  };

  TensorBoardWriter(const std::filesystem::path& folder, int64_t resume_step);

  // Writes one event. Reuses its buffers, so that only the first calls allocate.
  void write(int64_t step, std::initializer_list<Scalar> scalars);

  const OutputFile& file() const { return file_; }

 private:
  void begin_event(int64_t step);
  void write_event();

  OutputFile file_;
  std::string event_, summary_, value_, record_;
};

}  // namespace gptrain::report
