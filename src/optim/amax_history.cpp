#include "optim/amax_history.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/fp8.h"
#include "model/record.h"
#include "model/statistics.h"
#include "ops/fp8_ops.h"

namespace gptrain::inline optim {
namespace {

// Returns an amax for which fp8_scale<T> is `scale`, a power of two.
template <typename T>
float amax_of_scale(float scale) {
  return to_float(T{T::largest_code}) / scale;
}

int64_t row_bytes(int64_t num_layers) { return align_up(num_fp8_amaxes(num_layers) * dtype_bytes(DType::f32)); }

}  // namespace

AmaxHistory::Design::Design(const PrecisionConfig& precision, const ModelConfig& model, int64_t global_batch)
    : length(precision.amax_history), num_layers(model.num_layers), tokens(global_batch * model.sequence_length) {}

AmaxHistory::AmaxHistory(const UpdateContext& context, const Design& design, const Matrix& amaxes, std::byte* tables)
    : context_(context),
      amaxes_(amaxes),
      history_(tables + 2 * row_bytes(design.num_layers), DType::f32, design.length, amaxes.cols),
      initial_(tables, DType::f32, 1, amaxes.cols),
      forecast_(tables + row_bytes(design.num_layers), DType::f32, 1, amaxes.cols) {
  const auto tokens = static_cast<float>(std::bit_floor(static_cast<uint64_t>(design.tokens)));
  first_.assign(static_cast<size_t>(amaxes.cols), amax_of_scale<f8e4m3>(1));
  std::fill(first_.begin() + amaxes.cols / 2, first_.end(), amax_of_scale<f8e5m2>(tokens));
  context_.backend.upload(initial_.data, first_.data(), initial_.bytes());
  restart();
}

int64_t AmaxHistory::table_bytes(const Design& design) {
  const int64_t history = design.length * num_fp8_amaxes(design.num_layers) * dtype_bytes(DType::f32);
  return 2 * row_bytes(design.num_layers) + align_up(history);
}

void AmaxHistory::restart() const { set({}, 0); }

void AmaxHistory::roll() const {
  context_.backend.run(RollAmaxes{
      .amaxes = amaxes_, .history = history_, .initial = initial_, .forecast = forecast_, .state = context_.state});
}

std::vector<float> AmaxHistory::get(int64_t updates) const {
  std::vector<float> rows(static_cast<size_t>(history_.count()));
  context_.backend.download(rows.data(), history_.data, history_.bytes());
  context_.backend.synchronize();
  std::vector<float> amaxes;
  for (int64_t update = std::max<int64_t>(0, updates - history_.rows); update < updates; ++update) {
    const auto row = rows.begin() + update % history_.rows * count();
    amaxes.insert(amaxes.end(), row, row + count());
  }
  return amaxes;
}

void AmaxHistory::set(const std::vector<float>& amaxes, int64_t updates) const {
  if (std::ssize(amaxes) % count() != 0) {
    throw Error(ExitCode::checkpoint, "the checkpoint's amax history has {} numbers, which are not {} for each update",
                amaxes.size(), count());
  }
  std::vector<float> rows(static_cast<size_t>(history_.count())), forecast(first_.size());
  const int64_t given = std::min({std::ssize(amaxes) / count(), updates, history_.rows});
  for (int64_t i = 1; i <= given; ++i) {
    const auto row = amaxes.end() - i * count();
    std::copy(row, row + count(), rows.begin() + (updates - i) % history_.rows * count());
    std::transform(row, row + count(), forecast.begin(), forecast.begin(),
                   [](float amax, float largest) { return std::max(amax, largest); });
  }
  std::transform(forecast.begin(), forecast.end(), first_.begin(), forecast.begin(),
                 [](float largest, float initial) { return largest > 0 ? largest : initial; });
  context_.backend.upload(history_.data, rows.data(), history_.bytes());
  context_.backend.upload(forecast_.data, forecast.data(), forecast_.bytes());
}

}  // namespace gptrain::optim
