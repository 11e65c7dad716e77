#include "checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "base/units.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"
#include "checkpoint/model_check.h"
#include "checkpoint/new_folder.h"
#include "config/load.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

size_t name_width(const std::set<std::string>& names) {
  size_t width = std::string_view("tensor").size();
  for (const std::string& name : names) width = std::max(width, printable(name).size());
  return width;
}

std::set<std::string> names_of(const Contents& contents) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : contents.tensors) names.insert(name);
  return names;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

struct Difference {
  double largest = 0;
  double relative = 0;
};

Difference difference_of(const std::vector<float>& a, const std::vector<float>& b) {
  Difference result;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    const double distance = a[i] == b[i] || both_nan ? 0 : std::abs(static_cast<double>(a[i]) - b[i]);
    // NaN counts as the largest difference.
    if (std::isnan(distance) || distance > result.largest) result.largest = distance;
    if (std::isnan(distance)) return {distance, distance};
    sum += distance * distance;
  }
  result.relative = sum == 0 ? 0 : std::sqrt(sum) / norm(a);
  return result;
}

// The weighted sum of one tensor of several checkpoints, made as it is read.
class AveragedTensor final : public SliceMemory {
 public:
  // `name` is the tensor's name in the checkpoints.
  AveragedTensor(const std::vector<Contents>& all, const std::vector<double>& shares, std::string name, DType dtype)
      : all_(all), shares_(shares), name_(std::move(name)), dtype_(dtype) {}

  // The tensor's bytes begin at 0. A large one is written to several files, one after the other.
  void read(const std::byte* from, int64_t bytes, const Take& take) override {
    const auto first = reinterpret_cast<uintptr_t>(from);
    if (average_.empty()) average();
    take(average_.data() + first, bytes);
    if (first + static_cast<uintptr_t>(bytes) == average_.size()) average_ = {};
  }
  void write(std::byte*, const std::byte*, int64_t) override {}

 private:
  void average() {
    std::vector<double> sums;
    bool all_zero = true;
    for (size_t i = 0; i < all_.size(); ++i) {
      const std::vector<float> values = load_tensor(all_[i], name_, NotFinite::refused);
      sums.resize(values.size());
      for (size_t k = 0; k < values.size(); ++k) sums[k] += shares_[i] * values[k];
      all_zero = all_zero && std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
    }
    // Half of the smallest number above 0.
    const double vanishes = dtype_ == DType::bf16 ? 0x1p-134 : 0x1p-150;
    if (!all_zero && std::all_of(sums.begin(), sums.end(), [=](double sum) { return std::abs(sum) <= vanishes; })) {
      throw Error(ExitCode::checkpoint, "{}: every number of the weighted sum is 0 in {}; choose other --shares",
                  printable(name_), dtype_name(dtype_));
    }
    if (dtype_ == DType::bf16) {
      keep(sums, [](double sum) { return to_bf16(static_cast<float>(sum)); });
    } else {
      keep(sums, [](double sum) { return static_cast<float>(sum); });
    }
  }

  template <typename Round>
  void keep(const std::vector<double>& sums, const Round& round) {
    using Value = decltype(round(0.0));
    average_.resize(sums.size() * sizeof(Value));
    std::transform(sums.begin(), sums.end(), reinterpret_cast<Value*>(average_.data()), round);
    constexpr double largest_bf16 = 3.3895313892515355e38;
    const double most = dtype_ == DType::bf16 ? largest_bf16 : double{std::numeric_limits<float>::max()};
    const bool fits = std::all_of(sums.begin(), sums.end(), [most](double sum) { return std::abs(sum) <= most; });
    if (fits) return;
    throw Error(ExitCode::checkpoint,
                "{}: the weighted sum holds numbers that are not finite in {}; choose other --shares", printable(name_),
                dtype_name(dtype_));
  }

  const std::vector<Contents>& all_;
  const std::vector<double>& shares_;
  const std::string name_;
  const DType dtype_;
  std::vector<std::byte> average_;  // empty before the first byte is read and after the last one
};

void require_one_model(const std::vector<Contents>& all) {
  const auto config_of = [](const Contents& contents) {
    return saved_config(contents.checkpoint, contents.stored.manifest);
  };
  const RunConfig first = config_of(all.front());
  for (const Contents& contents : all) {
    const RunConfig config = config_of(contents);
    check_model(contents, config);
    const auto &tokenizer = contents.stored.manifest.tokenizer, &other = all.front().stored.manifest.tokenizer;
    if (tokenizer && other && tokenizer->sha256 != other->sha256) {
      throw Error(ExitCode::usage, "{} has another tokenizer than {}: their tokens are not the same",
                  contents.checkpoint.string(), all.front().checkpoint.string());
    }
    const ModelChanges changes = model_changes({first, config});
    if (changes.refused.empty() && changes.accepted.empty()) continue;
    throw Error(ExitCode::usage, "{} is of another model than {}:\n{}", contents.checkpoint.string(),
                all.front().checkpoint.string(),
                changes.refused.empty() ? Lines("{}", changes.accepted.front()) : changes.refused);
  }
}

// Returns the share of each of `count` checkpoints: those given, or that of the mean. THROWS Error(usage).
std::vector<double> checked_shares(const std::vector<double>& given, size_t count) {
  if (given.empty()) return std::vector<double>(count, 1.0 / static_cast<double>(count));
  if (given.size() != count) {
    throw Error(ExitCode::usage, "--shares gives {} numbers for {}", given.size(),
                format_counted(static_cast<int64_t>(count), "checkpoint"));
  }
  for (const double share : given) {
    if (!std::isfinite(share)) throw Error(ExitCode::usage, "--shares: {} is not a finite number", share);
    if (share < 0) throw Error(ExitCode::usage, "--shares: {} is negative; give each checkpoint 0 or more", share);
  }
  if (std::all_of(given.begin(), given.end(), [](double share) { return share == 0; })) {
    throw Error(ExitCode::usage, "--shares: all are 0, so that every weight would be 0; their sum should be 1");
  }
  return given;
}

}  // namespace

std::string tensor_table(const fs::path& checkpoint) {
  const Contents contents = read_contents(checkpoint);
  const size_t width = name_width(names_of(contents));
  std::string table;
  const auto out = std::back_inserter(table);
  fmt::format_to(out, "{:<{}}  {:>12}  {:>12}  not finite\n", "tensor", width, "norm", "largest");
  for (const auto& [name, tensor] : contents.tensors) {
    const std::vector<float> values = load_tensor(contents, name, NotFinite::allowed);
    double largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
    const auto lost = std::count_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    fmt::format_to(out, "{:<{}}  {:>12.6g}  {:>12.6g}  {}\n", printable(name), width, norm(values), largest, lost);
  }
  return table;
}

std::string compare_checkpoints(const fs::path& a, const fs::path& b) {
  const Contents of_a = read_contents(a), of_b = read_contents(b);
  std::set<std::string> names = names_of(of_a);
  names.merge(names_of(of_b));
  const size_t width = name_width(names);
  std::string text;
  const auto out = std::back_inserter(text);
  int64_t same = 0;
  for (const std::string& name : names) {
    const auto load = [&name = name](const Contents& of) { return load_tensor(of, name, NotFinite::allowed); };
    const auto left = of_a.tensors.find(name), right = of_b.tensors.find(name);
    const std::string shown = printable(name);
    if (left == of_a.tensors.end() || right == of_b.tensors.end()) {
      fmt::format_to(out, "{:<{}}  only in {}\n", shown, width,
                     one_line((left == of_a.tensors.end() ? b : a).native()));
    } else if (left->second.front().global_shape != right->second.front().global_shape) {
      fmt::format_to(out, "{:<{}}  {} against {}\n", shown, width, format_shape(left->second.front().global_shape),
                     format_shape(right->second.front().global_shape));
    } else if (const Difference found = difference_of(load(of_a), load(of_b)); found.largest == 0) {
      ++same;
    } else {
      fmt::format_to(out, "{:<{}}  largest difference {:<12.6g}  relative norm {:.3g}\n", shown, width, found.largest,
                     found.relative);
    }
  }
  fmt::format_to(out, "{} of {} have the same numbers\n", same, format_counted(std::ssize(names), "tensor"));
  return text;
}

void average_checkpoints(const std::vector<fs::path>& checkpoints, const std::vector<double>& given,
                         const fs::path& out, WhichWeights which) {
  const std::vector<double> shares = checked_shares(given, checkpoints.size());
  NewFolder made(out, "--out");
  std::vector<Contents> all;
  for (const fs::path& checkpoint : checkpoints) all.push_back(read_contents(checkpoint));
  require_one_model(all);
  for (const Contents& contents : all) require_weights(contents, which);
  const auto newest = std::max_element(all.begin(), all.end(), [](const Contents& a, const Contents& b) {
    return a.stored.manifest.progress.step < b.stored.manifest.progress.step;
  });
  Manifest manifest = newest->stored.manifest;
  manifest.build = version;
  manifest.tokenizer = read_tokenizer(newest->checkpoint);
  std::vector<std::unique_ptr<AveragedTensor>> sums;
  std::vector<Slice> slices;
  for (const auto& [name, stored] : newest->tensors) {
    if (!name.starts_with(weight_prefix)) continue;
    const std::string source = stored_name(which, std::string_view(name).substr(weight_prefix.size()));
    sums.push_back(std::make_unique<AveragedTensor>(all, shares, source, stored.front().dtype));
    const std::vector<int64_t>& shape = stored.front().global_shape;
    slices.push_back({.name = name,
                      .global_shape = shape,
                      .box = whole_box(shape),
                      .memory = sums.back().get(),
                      .dtype = stored.front().dtype});
  }
  save_checkpoint(made.path(), manifest, slices);
  made.publish();
}

}  // namespace gptrain::checkpoint
