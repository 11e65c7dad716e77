#include "train/validation.h"

#include <cmath>
#include <fmt/format.h>
#include <numbers>

#include "base/error.h"
#include "base/output.h"
#include "base/units.h"
#include "comm/agree.h"
#include "step/averaged_weights.h"
#include "step/step_design.h"
#include "train/batches.h"
#include "train/routing.h"

namespace gptrain::inline train {

Validation::Validation(const RunContext& context, const std::optional<Dataset>& data, const Tokenizer* tokenizer,
                       TrainingStep& step, std::byte* ring, Reporter& reporter, StopRequest& stop)
    : context_(context),
      data_(data),
      tokenizer_(tokenizer),
      step_(step),
      ring_(ring),
      reporter_(reporter),
      stop_(stop) {}

bool Validation::is_due(int64_t step) const {
  const int64_t every = context_.config.run.validate_every_steps;
  return every > 0 && step > 0 && step % every == 0;
}

void Validation::warn_of_repeats() const {
  if (!context_.leads() || !data_) return;
  const int64_t wanted = context_.config.run.validation_samples;
  int64_t samples = 0;
  for (const Dataset::SourceReport& source : data_->report(wanted)) samples += source.samples;
  if (samples >= wanted) return;
  print_err("warning: run.validation_samples = {}: data.validation holds {}, so some count more than once\n", wanted,
            format_counted(samples, "sample"));
}

bool Validation::run(int64_t step) {
  if (!data_ || validated_step_ == step) return true;
  lost_ = false;
  context_.world.activity().set_phase("validation");
  std::optional<AveragedWeights> average;
  if (context_.config.run.validate_ema && step_.updates() > 0) average.emplace(step_);
  const std::optional<double> sum = evaluate();
  if (average) average->restore();
  agree_on(context_.all(), context_.world, [&] {
    if (!fault_.empty()) throw Error(ExitCode::data, "validation after step {}: {}", step, fault_);
    refuse_overflow(step_, fmt::format("validation after step {}", step));
  });
  if (!sum) return false;
  validated_step_ = step;
  lost_ = !std::isfinite(*sum);
  reporter_.report_validation(step, metrics_of(*sum, average.has_value()), context_.config.run.validation_samples);
  return true;
}

// Returns the sum of the cross-entropies; none if a stop was agreed upon.
std::optional<double> Validation::evaluate() {
  const StepConfig& config = context_.config;
  const int64_t samples = context_.config.run.validation_samples;
  const DataRank data_rank = context_.data_rank();
  Prefetcher batches =
      read_ahead(config, *data_, 0, data_rank, prefetch_ring(config, context_.backend.target()), ring_);
  FirstSamples counted(batches, samples, config, data_rank);
  double sum = 0;
  for (int64_t first = 0; first < samples; first += config.batch.micro * data_rank.size) {
    if (stop_.agree(step_)) return std::nullopt;
    sum += step_.evaluate(1, counted);
    fault_ = batches.fault();
  }
  return sum;
}

// `sum` is the sum of the cross-entropies of all tokens.
ValidationMetrics Validation::metrics_of(double sum, bool of_average) {
  const int64_t samples = context_.config.run.validation_samples;
  ValidationMetrics metrics{.loss = sum / static_cast<double>(data_->count_targets(0, samples)), .ema = of_average};
  if (tokenizer_ == nullptr || !context_.leads()) return metrics;
  try {
    if (!text_bytes_) text_bytes_ = data_->count_bytes(samples, tokenizer_->text_bytes());
  } catch (const Error& error) {
    print_err("warning: bits per byte are not known: {}\n", error.what());
    return metrics;
  }
  if (*text_bytes_ > 0) metrics.bits_per_byte = sum / (std::numbers::ln2 * static_cast<double>(*text_bytes_));
  return metrics;
}

}  // namespace gptrain::train
