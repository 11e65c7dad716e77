// The tensors of a folder of the transformers library: model.safetensors, or the files that its index names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace gptrain::inline checkpoint {

class HfFiles {
 public:
  // Reads the headers. Error(checkpoint), naming the file: it is missing or damaged; the index names a file outside of
  // the folder, or does not match their content; there are only PyTorch's own files (the message says how to convert
  // them).
  explicit HfFiles(const std::filesystem::path& folder);

  struct Location {
    size_t file;
    SafetensorsTensor tensor;
  };
  const std::map<std::string, Location>& tensors() const { return tensors_; }
  int64_t bytes() const;  // sum over all tensors

  // Returns a tensor's values, converted from f32, f16 or bf16. THROWS Error(checkpoint) if the dtype is another one,
  // or a value is not finite.
  std::vector<float> read(const std::string& name) const;
  std::filesystem::path file_of(const std::string& name) const { return files_[tensors_.at(name).file]; }

 private:
  void add(const std::filesystem::path& file);

  std::vector<std::filesystem::path> files_;
  std::map<std::string, Location> tensors_;
};

}  // namespace gptrain::checkpoint
