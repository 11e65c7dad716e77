#include "harness.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>

namespace gptrain::ops_test {
namespace {

constexpr int64_t guard_bytes = 256;
constexpr double pi = 3.14159265358979323846;

// Repeated, it is NaN as f32, bf16 and f16 and a huge number as f64, so that reading a guard band shows in the results.
// Differs from the poison, so that writing NaN over it shows too.
constexpr uint16_t guard_pattern = 0xFFA5;
constexpr int poison_byte = 0xFF;  // NaN as f32, bf16, f16 and f64
constexpr int64_t poisoned_scratch_bytes = 64 << 10;
constexpr int64_t most_drawn = 1 << 20;

void fill_guard(std::byte* from, std::byte* to) {
  for (std::byte* at = from; at + 1 < to; at += 2) std::memcpy(at, &guard_pattern, 2);
}

// Returns the distance between neighbouring numbers of a dtype, relative to the number.
double unit_in_last_place(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    case DType::f32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

// Returns the distance between numbers next to zero; 0 if it is far below all computed numbers.
double smallest_number(DType dtype) { return dtype == DType::f16 ? 0x1p-24 : 0; }

double read_element(const std::byte* from, DType dtype) {
  switch (dtype) {
    case DType::f32: {
      float value;
      std::memcpy(&value, from, sizeof value);
      return static_cast<double>(value);
    }
    case DType::bf16: {
      bf16 value;
      std::memcpy(&value, from, sizeof value);
      return static_cast<double>(to_float(value));
    }
    case DType::f16: {
      f16 value;
      std::memcpy(&value, from, sizeof value);
      return static_cast<double>(to_float(value));
    }
    case DType::f64: {
      double value;
      std::memcpy(&value, from, sizeof value);
      return value;
    }
    case DType::i32: {
      int32_t value;
      std::memcpy(&value, from, sizeof value);
      return value;
    }
    default:
      return std::to_integer<int>(*from);
  }
}

void write_element(std::byte* to, DType dtype, double value) {
  switch (dtype) {
    case DType::f32: {
      const auto rounded = static_cast<float>(value);
      std::memcpy(to, &rounded, sizeof rounded);
      return;
    }
    case DType::bf16: {
      const bf16 rounded = to_bf16(static_cast<float>(value));
      std::memcpy(to, &rounded, sizeof rounded);
      return;
    }
    case DType::f16: {
      const f16 rounded = to_f16(static_cast<float>(value));
      std::memcpy(to, &rounded, sizeof rounded);
      return;
    }
    case DType::f64:
      std::memcpy(to, &value, sizeof value);
      return;
    case DType::i32: {
      const auto integer = static_cast<int32_t>(value);
      std::memcpy(to, &integer, sizeof integer);
      return;
    }
    default:
      *to = static_cast<std::byte>(static_cast<int>(value));
  }
}

struct Errors {
  double largest = 0;
  double mean_square = 0;
};

Errors errors_of(const std::vector<double>& values, const std::vector<double>& reference) {
  Errors errors;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(values[i] - reference[i]);
    errors.largest = std::max(errors.largest, error);
    errors.mean_square += error * error / static_cast<double>(reference.size());
  }
  return errors;
}

double mean_square(const std::vector<double>& values) {
  return errors_of(values, std::vector<double>(values.size())).mean_square;
}

// Scratch memory of exactly the footprint's size, between guard bands, lent to a backend.
class GuardedScratch {
 public:
  GuardedScratch(Backend& backend, int64_t bytes)
      : backend_(backend), bytes_(bytes), guard_(guard_bytes), memory_(backend.allocate(bytes + 2 * guard_bytes)) {
    fill_guard(guard_.data(), guard_.data() + guard_.size());
    // An op must not rely on the content of scratch. Poisoning its start is enough to find one that does.
    const std::vector<std::byte> poison(static_cast<size_t>(std::min(bytes, poisoned_scratch_bytes)),
                                        static_cast<std::byte>(poison_byte));
    backend.upload(memory_->data() + guard_bytes, poison.data(), static_cast<int64_t>(poison.size()));
    backend.upload(memory_->data(), guard_.data(), guard_bytes);
    backend.upload(memory_->data() + guard_bytes + bytes, guard_.data(), guard_bytes);
    backend.set_scratch(memory_->data() + guard_bytes, bytes);
  }
  ~GuardedScratch() { backend_.set_scratch(nullptr, 0); }
  GuardedScratch(const GuardedScratch&) = delete;
  GuardedScratch& operator=(const GuardedScratch&) = delete;

  bool intact() const {
    std::vector<std::byte> before(guard_.size());
    std::vector<std::byte> after(guard_.size());
    backend_.download(before.data(), memory_->data(), guard_bytes);
    backend_.download(after.data(), memory_->data() + guard_bytes + bytes_, guard_bytes);
    return before == guard_ && after == guard_;
  }

 private:
  Backend& backend_;
  int64_t bytes_;
  std::vector<std::byte> guard_;
  std::unique_ptr<DeviceMemory> memory_;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

uint64_t Random::next() {
  state_ += 0x9E3779B97F4A7C15U;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::normal() { return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(2 * pi * uniform()); }

int64_t Random::below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }

Operand::Operand(Backend& backend, DType dtype, int64_t rows, int64_t cols, int64_t stride)
    : dtype_(dtype),
      rows_(rows),
      cols_(cols),
      stride_(stride),
      host_(static_cast<size_t>(2 * guard_bytes + (rows * stride * dtype_bytes(dtype) + 1) / 2 * 2)),
      device_(backend.allocate(static_cast<int64_t>(host_.size()))) {
  fill_guard(host_.data(), host_.data() + host_.size());
}

void* Operand::device_data() const { return device_->data() + guard_bytes; }

std::byte* Operand::element(int64_t row, int64_t col) {
  return host_.data() + guard_bytes + (row * stride_ + col) * dtype_bytes(dtype_);
}

const std::byte* Operand::element(int64_t row, int64_t col) const {
  return host_.data() + guard_bytes + (row * stride_ + col) * dtype_bytes(dtype_);
}

void Operand::poison() {
  for (int64_t row = 0; row < rows_; ++row)
    std::memset(element(row, 0), poison_byte, static_cast<size_t>(cols_ * dtype_bytes(dtype_)));
}

std::vector<double> Operand::values() const {
  std::vector<double> result;
  result.reserve(static_cast<size_t>(rows_ * cols_));
  for (int64_t row = 0; row < rows_; ++row)
    for (int64_t col = 0; col < cols_; ++col) result.push_back(at(row, col));
  return result;
}

void Operand::set_values(const std::vector<double>& values) {
  for (int64_t row = 0; row < rows_; ++row)
    for (int64_t col = 0; col < cols_; ++col) set(row, col, values.at(static_cast<size_t>(row * cols_ + col)));
}

double Operand::at(int64_t row, int64_t col) const { return read_element(element(row, col), dtype_); }

void Operand::set(int64_t row, int64_t col, double value) { write_element(element(row, col), dtype_, value); }

bool Operand::holds(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= device_->data() && at < device_->data() + host_.size();
}

void DescribedOperands::operand(std::string_view name, const Matrix& matrix, Access access, const Form&) {
  if (matrix.given()) uses_.push_back({std::string(name), matrix.data, is_written(access)});
}

std::string Operand::damage(bool writable) const {
  if (!writable) return host_ == before_ ? "" : "it is only read, and was written to";
  const auto same = [&](const std::byte* from, const std::byte* to) {
    return std::equal(from, to, before_.data() + (from - host_.data()));
  };
  if (!same(host_.data(), element(0, 0))) return "memory before an output was written to";
  for (int64_t row = 0; row + 1 < rows_; ++row)
    if (!same(element(row, cols_), element(row + 1, 0)))
      return fmt::format("memory after row {} of an output was written to", row);
  if (!same(element(rows_ - 1, cols_), host_.data() + host_.size())) return "memory after an output was written to";
  return "";
}

Operand& Trial::add(DType dtype, int64_t rows, int64_t cols, int64_t gap, bool writable) {
  // A CUDA backend without f16 (--without-f16) has it in no op.
  if (dtype == DType::f16 && !backend_.f16 && !(op_has_f16_ && backend_.name.starts_with("cpu")))
    throw NotOnThisBackend{"f16"};
  if (wide_gaps_ && cols % 8 == 0) gap *= 8;
  Operand& operand = operands_.emplace_back(backend(), dtype, rows, cols, cols + gap);
  operand.writable_ = writable;
  return operand;
}

const Operand& Trial::input(DType dtype, int64_t rows, int64_t cols, double scale, int64_t gap) {
  Operand& operand = in_out(dtype, rows, cols, scale, gap);
  operand.writable_ = false;
  return operand;
}

Operand& Trial::in_out(DType dtype, int64_t rows, int64_t cols, double scale, int64_t gap) {
  Operand& operand = add(dtype, rows, cols, gap, true);
  if (rows * cols == 0) return operand;
  const int64_t drawn_cols = std::min(cols, most_drawn), drawn_rows = std::min(rows, most_drawn / drawn_cols);
  for (int64_t row = 0; row < rows; ++row) {
    if (row < drawn_rows)
      for (int64_t col = 0; col < drawn_cols; ++col) operand.set(row, col, scale * random.normal());
    const std::byte* const from = operand.element(row % drawn_rows, 0);
    for (int64_t col = row < drawn_rows ? drawn_cols : 0; col < cols; col += drawn_cols)
      std::memcpy(operand.element(row, col), from,
                  static_cast<size_t>(std::min(drawn_cols, cols - col) * dtype_bytes(dtype)));
  }
  return operand;
}

Operand& Trial::output(DType dtype, int64_t rows, int64_t cols, int64_t gap) {
  Operand& operand = add(dtype, rows, cols, gap, true);
  operand.poison();
  return operand;
}

const Operand& Trial::input(DType dtype, int64_t rows, int64_t cols, const std::vector<double>& values, int64_t gap) {
  Operand& operand = add(dtype, rows, cols, gap, false);
  operand.set_values(values);
  return operand;
}

Operand& Trial::array(const void* data, int64_t bytes, bool writable) {
  Operand& operand = add(DType::u8, 1, bytes, 0, writable);
  std::memcpy(operand.element(0, 0), data, static_cast<size_t>(bytes));
  return operand;
}

void Trial::copy_bytes(const Operand& operand, void* to, size_t bytes) {
  std::memcpy(to, operand.element(0, 0), bytes);
}

void Trial::upload_all(Backend& backend) {
  for (Operand& operand : operands_)
    backend.upload(operand.device_->data(), operand.before_.data(), static_cast<int64_t>(operand.before_.size()));
}

void Trial::download_all(Backend& backend) {
  backend.synchronize();
  for (Operand& operand : operands_)
    backend.download(operand.host_.data(), operand.device_->data(), static_cast<int64_t>(operand.host_.size()));
}

std::vector<bool> Trial::writable_operands(const DescribedOperands& described) {
  std::vector<bool> writable;
  for (const Operand& operand : operands_) {
    bool read = false, written = false;
    for (const auto& use : described.uses()) {
      if (!operand.holds(use.data)) continue;
      (use.written ? written : read) = true;
      if (use.written && !operand.writable_)
        fail(fmt::format("{} is written by its description, and an input", use.name));
    }
    writable.push_back(operand.writable_ && (written || !read));
  }
  return writable;
}

void Trial::run_variants(const Runner& runner, const ScratchBytes& scratch_bytes, const DescribedOperands& described,
                         bool same_bits) {
  for (Operand& operand : operands_) operand.before_ = operand.host_;
  const std::vector<bool> writable = writable_operands(described);
  std::vector<std::vector<std::byte>> first_results;
  for (const auto& variant : backend_.variants) {
    GuardedScratch scratch(*variant, scratch_bytes(variant->target()));
    upload_all(*variant);
    runner(*variant);
    download_all(*variant);
    const std::string with = fmt::format("with {} threads", variant->target().num_threads);
    if (!scratch.intact()) fail(fmt::format("{}: memory outside the scratch memory was written to", with));
    const bool first = first_results.empty() && &variant == &backend_.variants.front();
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (const std::string damage = operands_[i].damage(writable[i]); !damage.empty())
        fail(fmt::format("operand {} in the order they were made, {}: {}", i, with, damage));
      if (first) {
        first_results.push_back(operands_[i].host_);
      } else if (same_bits && operands_[i].host_ != first_results[i]) {
        fail(fmt::format("operand {} in the order they were made, {}: not the bits of {} threads", i, with,
                         backend_.variants.front()->target().num_threads));
      }
    }
  }
  for (size_t i = 0; i < operands_.size(); ++i) operands_[i].host_ = first_results[i];
}

void Trial::run_rejected(const Runner& runner, const ScratchBytes& scratch_bytes, std::string_view why) {
  const GuardedScratch scratch(backend(), scratch_bytes(backend().target()));
  for (Operand& operand : operands_) operand.before_ = operand.host_;
  upload_all(backend());
  try {
    runner(backend());
    fail(fmt::format("not rejected: {}", why));
  } catch (const std::logic_error&) {
  }
}

void Trial::time_op(const Runner& runner, const Footprint& footprint) {
  constexpr double least_seconds = 0.3;
  constexpr int least_runs = 10;
  const auto scratch = backend().allocate(footprint.scratch_bytes);
  backend().set_scratch(scratch->data(), footprint.scratch_bytes);
  for (Operand& operand : operands_) operand.before_ = operand.host_;
  upload_all(backend());
  backend().set_choosing(true);  // chooses the fastest algorithm of a linear
  runner(backend());
  backend().set_choosing(false);
  const auto seconds_of = [&](int runs) {
    const double start = seconds_now();
    for (int run = 0; run < runs; ++run) runner(backend());
    backend().synchronize();
    return seconds_now() - start;
  };
  seconds_of(1);  // the first call builds things that later ones reuse
  // Times several runs together if the wait at their end would be a large part of one.
  const int at_once = static_cast<int>(std::clamp(std::ceil(1e-3 / seconds_of(1)), 1.0, 100.0));
  double fastest = std::numeric_limits<double>::infinity();
  int runs = 0;
  for (double total = 0; total < least_seconds || runs < least_runs; ++runs) {
    const double seconds = seconds_of(at_once);
    fastest = std::min(fastest, seconds / at_once);
    total += seconds;
  }
  backend().set_scratch(nullptr, 0);
  timing_ = {fastest, footprint};
}

void Trial::expect_close(std::string_view what, const Operand& actual, const std::vector<double>& reference,
                         const std::vector<double>& plain, double factor, double noise) {
  const Errors plain_errors = errors_of(plain, reference);
  expect_near(what, actual, reference, factor * plain_errors.largest + noise);
  const double unit = unit_in_last_place(actual.dtype());
  const double allowed = 2 * std::sqrt(plain_errors.mean_square) + unit / 2 * std::sqrt(mean_square(reference)) +
                         smallest_number(actual.dtype()) / 2 + noise;
  const double rms = std::sqrt(errors_of(actual.values(), reference).mean_square);
  if (rms > allowed) fail(fmt::format("{}: root-mean-square error {:.3g}, allowed {:.3g}", what, rms, allowed));
}

void Trial::expect_near(std::string_view what, const Operand& actual, const std::vector<double>& reference,
                        double bound) {
  const std::vector<double> values = actual.values();
  if (values.size() != reference.size()) {
    fail(fmt::format("{}: {} elements, reference has {}", what, values.size(), reference.size()));
    return;
  }
  const double unit = unit_in_last_place(actual.dtype());
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed = bound + unit * std::abs(reference[i]) + smallest_number(actual.dtype());
    // The comparison is false for NaN, which thus fails.
    if (std::abs(values[i] - reference[i]) <= allowed) continue;
    const auto index = static_cast<int64_t>(i);
    fail(fmt::format("{}: element ({}, {}) is {:.9g}, reference {:.9g}, allowed difference {:.3g}", what,
                     index / actual.cols_, index % actual.cols_, values[i], reference[i], allowed));
    return;
  }
}

void Trial::expect_equal(std::string_view what, const Operand& actual, const std::vector<double>& reference) {
  const std::vector<double> values = actual.values();
  for (size_t i = 0; i < std::max(values.size(), reference.size()); ++i) {
    if (i < std::min(values.size(), reference.size()) && values[i] == reference[i]) continue;
    const auto index = static_cast<int64_t>(i);
    fail(fmt::format("{}: element ({}, {}) is {:.9g}, must be exactly {:.9g}", what, index / actual.cols_,
                     index % actual.cols_, i < values.size() ? values[i] : std::nan(""),
                     i < reference.size() ? reference[i] : std::nan("")));
    return;
  }
}

void Trial::expect_true(bool condition, std::string_view what) {
  if (!condition) fail(fmt::format("does not hold: {}", what));
}

StepState state_after(int64_t updates, bool skip) {
  StepState state;
  state.learning_rate = 0.01F;
  state.gradient_scale = 0.3F;
  state.skip = skip ? 1 : 0;
  state.updates = updates;
  return state;
}

}  // namespace gptrain::ops_test
