#include "helpers.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "checkpoint/folder.h"

namespace checkpoint_test {
namespace fs = std::filesystem;
using namespace gptrain;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    if (e.code() != ExitCode::checkpoint) return fmt::format("exit code {}", static_cast<int>(e.code()));
    return e.what();
  } catch (const std::exception& e) {
    return fmt::format("not an Error: {}", e.what());
  }
  return "nothing was thrown";
}

std::string lacking(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return fmt::format("\"{}\" is not in \"{}\"", part, text);
  }
  return "";
}

Tensor make_tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t version) {
  Tensor tensor{name, shape, {}};
  std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)) ^ (version * 2654435761U));
  const int64_t count = num_elements(shape).value();
  constexpr uint32_t exponent = 0x7f800000, quarter = 0x20000000;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    tensor.data.push_back(std::bit_cast<float>((bits & exponent) == exponent ? bits ^ quarter : bits));
  }
  return tensor;
}

Box whole(const Tensor& tensor) { return whole_box(tensor.shape); }

void add_part(Parts& parts, const Tensor& tensor, const Box& box) {
  // Computes element by element from the definition of row-major order, without the code under test.
  std::vector<float> values;
  const int64_t count = num_elements(box.shape).value();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t stride = 1;
    int64_t at = 0;
    for (size_t d = box.shape.size(); d > 0; --d) {
      at += (box.offset[d - 1] + rest % box.shape[d - 1]) * stride;
      rest /= box.shape[d - 1];
      stride *= tensor.shape[d - 1];
    }
    values.push_back(tensor.data[static_cast<size_t>(at)]);
  }
  parts.storage.push_back(std::move(values));
  parts.slices.push_back(
      {.name = tensor.name, .global_shape = tensor.shape, .box = box, .data = parts.storage.back().data()});
}

void add_empty_part(Parts& parts, const Tensor& tensor, const Box& box) {
  parts.storage.emplace_back(static_cast<size_t>(num_elements(box.shape).value()), -12345.0F);
  parts.slices.push_back(
      {.name = tensor.name, .global_shape = tensor.shape, .box = box, .data = parts.storage.back().data()});
}

bool same_bits(const Parts& a, const Parts& b) {
  return std::equal(
      a.storage.begin(), a.storage.end(), b.storage.begin(), b.storage.end(), [](const auto& x, const auto& y) {
        return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
      });
}

int64_t random_below(Random& random, int64_t limit) {
  return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
}

std::vector<Box> random_partition(Random& random, const std::vector<int64_t>& shape, int count) {
  std::vector<Box> boxes = {whole_box(shape)};
  for (int i = 1; i < count && !shape.empty(); ++i) {
    const auto chosen = static_cast<size_t>(random_below(random, static_cast<int64_t>(boxes.size())));
    const auto d = static_cast<size_t>(random_below(random, static_cast<int64_t>(shape.size())));
    if (boxes[chosen].shape[d] < 2) continue;
    const int64_t cut = 1 + random_below(random, boxes[chosen].shape[d] - 1);
    Box second = boxes[chosen];
    second.offset[d] += cut;
    second.shape[d] -= cut;
    boxes[chosen].shape[d] = cut;
    boxes.push_back(second);
  }
  return boxes;
}

std::vector<Box> flat_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  const int64_t cols = shape[1];
  std::vector<Box> boxes;
  if (begin % cols != 0) {
    const int64_t row_end = std::min(end, (begin / cols + 1) * cols);
    boxes.push_back({{begin / cols, begin % cols}, {1, row_end - begin}});
    begin = row_end;
  }
  if (end / cols > begin / cols) {
    boxes.push_back({{begin / cols, 0}, {end / cols - begin / cols, cols}});
    begin = end / cols * cols;
  }
  if (begin < end) boxes.push_back({{begin / cols, 0}, {1, end - begin}});
  return boxes;
}

Manifest make_manifest(int64_t step) {
  Manifest manifest;
  const int64_t updates = step * 9 / 10;
  manifest.progress = {.step = step,
                       .samples = step * 512,
                       .updates = updates,
                       .skipped = step - updates,
                       .skipped_in_a_row = 1,
                       .losses = {{3.25, 0.1}, {std::numeric_limits<double>::quiet_NaN(), 1e300}},
                       .rollbacks = 2,
                       .left_out = {{640, 64}, {9000, 1}}};
  manifest.seed = 0xFEDCBA9876543210U;
  manifest.world_size = 3;
  manifest.config = "{\"model\": {\"hidden_size\": 7}}\n\"quoted\" \xC3\xA9";
  manifest.build = "0.1.0";
  manifest.algorithms = "{\n  \"device\": \"a\"\n}";
  manifest.loss_scale = {4096, 17};
  manifest.amax_history = {0, 0x1.7p-20F, 448, 0x1.fep127F};
  return manifest;
}

namespace {

std::vector<Tensor> step_tensors(int64_t step, uint32_t version) {
  const uint32_t content = static_cast<uint32_t>(step) * 100 + version;
  return {make_tensor("weight/a", {5, 7}, content), make_tensor("exp_avg/a", {5, 7}, content),
          make_tensor("weight/b", {300, 33}, content)};
}

}  // namespace

void save_step(const fs::path& out, int64_t step, uint32_t version) {
  Parts parts;
  for (const Tensor& tensor : step_tensors(step, version)) add_part(parts, tensor, whole(tensor));
  save_checkpoint(out, make_manifest(step), parts.slices);
}

bool holds_step(const fs::path& checkpoint, int64_t step, uint32_t version) {
  Parts expected;
  Parts loaded;
  for (const Tensor& tensor : step_tensors(step, version)) {
    add_part(expected, tensor, whole(tensor));
    add_empty_part(loaded, tensor, whole(tensor));
  }
  verify_checkpoint(checkpoint);
  load_slices(checkpoint, loaded.slices);
  return same_bits(expected, loaded) && read_manifest(checkpoint).progress.step == step;
}

std::vector<std::string> folder_names(const fs::path& out) { return file_names(out / "checkpoints"); }

bool has_temporary_folders(const fs::path& out) {
  const auto names = folder_names(out);
  return std::any_of(names.begin(), names.end(), [](const auto& name) { return name.starts_with(".tmp-"); });
}

std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  // Flushes first: output buffered by Catch2 must not be written twice.
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    std::string text;
    try {
      text = body();
    } catch (const std::exception& e) {
      text = std::string("thrown: ").append(e.what());
    }
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "the child ended with status " + std::to_string(status);
  return text;
}

}  // namespace checkpoint_test
