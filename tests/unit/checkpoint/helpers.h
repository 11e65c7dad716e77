// What the checkpoint tests share: tensors cut into boxes, child processes.
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

// The message of the Error that `call` throws with the exit code of checkpoints; anything else is reported in the
// text, so that a comparison fails and shows it.
std::string error_of(const std::function<void()>& call);

// Empty if all parts are in the text, else the first that is not, and the text.
std::string lacking(const std::string& text, const std::vector<std::string>& parts);

// A global tensor of arbitrary bit patterns (NaNs included), different for each version.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> data;
};
Tensor make_tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t version = 1);

// Boxes of tensors with storage of their own.
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
// Cuts a tensor into at most `count` disjoint boxes that cover it, at random places along random dims.
std::vector<gptrain::Box> random_partition(Random& random, const std::vector<int64_t>& shape, int count);
// The elements [begin, end) of a matrix in row-major order: part of a row, rows, part of a row.
std::vector<gptrain::Box> flat_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

// A manifest of that step, with every field set.
gptrain::Manifest make_manifest(int64_t step);

// Writes step `step` with a few tensors, whose content follows from step and version.
void save_step(const std::filesystem::path& out, int64_t step, uint32_t version = 1);
// Whether the checkpoint holds what save_step wrote.
bool holds_step(const std::filesystem::path& checkpoint, int64_t step, uint32_t version = 1);

// Names in OUT/checkpoints, sorted.
std::vector<std::string> folder_names(const std::filesystem::path& out);
bool has_temporary_folders(const std::filesystem::path& out);

// Runs `body` in a child process and returns the text it gives, or how the child ended.
std::string in_child(const std::function<std::string()>& body);

}  // namespace checkpoint_test
