// Shared by the checkpoint tests: tensors cut into boxes, child processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/boxes.h"
#include "checkpoint/checkpoint.h"
#include "unit/temporary_folder.h"

namespace checkpoint_test {

// Returns the message of the Error with the checkpoint exit code that `call` throws. For any other outcome the text
// describes it, so that a comparison fails and shows it.
std::string error_of(const std::function<void()>& call);

// Returns "" if the text contains all parts, else the first missing one with the text.
std::string lacking(const std::string& text, const std::vector<std::string>& parts);

// A global tensor of arbitrary bit patterns of finite numbers, different for each version.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> data;
};
Tensor make_tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t version = 1);

// Boxes of tensors with their own storage.
struct Parts {
  std::vector<gptrain::Slice> slices;
  std::vector<std::vector<float>> storage;
};
void add_part(Parts& parts, const Tensor& tensor, const gptrain::Box& box);        // filled from the tensor
void add_empty_part(Parts& parts, const Tensor& tensor, const gptrain::Box& box);  // filled with a poison pattern
gptrain::Box whole(const Tensor& tensor);
bool same_bits(const Parts& a, const Parts& b);

using Random = std::minstd_rand;
int64_t random_below(Random& random, int64_t limit);
// Cuts a tensor at random into at most `count` disjoint boxes that cover it.
std::vector<gptrain::Box> random_partition(Random& random, const std::vector<int64_t>& shape, int count);
// Returns the elements [begin, end) of a matrix in row-major order as boxes: part of a row, rows, part of a row.
std::vector<gptrain::Box> flat_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

// Returns a manifest of `step` with every field set.
gptrain::Manifest make_manifest(int64_t step);

// Writes step `step` with a few tensors, whose content depends on step and version.
void save_step(const std::filesystem::path& out, int64_t step, uint32_t version = 1);
// Returns true if the checkpoint holds the data of save_step.
bool holds_step(const std::filesystem::path& checkpoint, int64_t step, uint32_t version = 1);

// Returns the names in OUT/checkpoints, sorted.
std::vector<std::string> folder_names(const std::filesystem::path& out);
bool has_temporary_folders(const std::filesystem::path& out);

// Runs `body` in a child process and returns its text, or how the child ended.
std::string in_child(const std::function<std::string()>& body);

}  // namespace checkpoint_test
