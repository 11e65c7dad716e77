#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/damaged.h"
#include "data/sample_order.h"
#include "data/token_file.h"
#include "data/token_paths.h"
#include "data/token_set.h"

namespace gptrain::inline data {
namespace {

void refuse_weight(const DataSource& source, double weight) {
  throw Error(ExitCode::usage, "weight {} of data source {}: weights must be positive with a finite sum", weight,
              source.path);
}

// Checks everything that can be refused before a file is opened.
void check_sources(const std::vector<DataSource>& sources) {
  if (sources.empty() || sources.size() > static_cast<size_t>(slots_per_cycle))
    throw Error(ExitCode::usage, "{} data sources; there must be from 1 to {}", sources.size(), slots_per_cycle);
  double sum = 0;
  for (const DataSource& source : sources) {
    sum += source.weight;
    if (!(source.weight > 0) || !std::isfinite(sum)) refuse_weight(source, source.weight);
  }
}

std::vector<TokenSet> open_sets(const std::vector<DataSource>& sources, int64_t sequence_length, int64_t vocab_size,
                                bool checksums) {
  check_sources(sources);
  std::vector<TokenSet> sets;
  for (const DataSource& source : sources) {
    const TokenSet& set = sets.emplace_back(source, sequence_length, checksums);
    for (const TokenFile& file : set.files())
      require_vocabulary(source.path, file.largest_id(), vocab_size, ExitCode::data);
  }
  return sets;
}

std::vector<int64_t> samples_of(const std::vector<TokenSet>& sets) {
  std::vector<int64_t> samples;
  for (const TokenSet& set : sets) samples.push_back(set.num_samples());
  return samples;
}

// Returns the initial weights; see DataSource and DataConfig.
std::vector<double> weights_of(const std::vector<DataSource>& sources, const std::vector<int64_t>& samples,
                               double temperature) {
  std::vector<double> weights;
  double sum = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const DataSource& source = sources[i];
    const auto size = static_cast<double>(samples[i]);
    double weight = source.weight;
    if (temperature > 0) weight *= std::pow(size, 1 / temperature);
    if (source.epochs > 0) weight = source.epochs * size;
    sum += weight;
    if (!(weight > 0) || !std::isfinite(sum)) refuse_weight(source, weight);
    weights.push_back(weight);
  }
  return weights;
}

// Returns the most samples that each source may give.
std::vector<int64_t> limits_of(const std::vector<DataSource>& sources, const std::vector<int64_t>& samples) {
  constexpr double most = 9e18;
  std::vector<int64_t> limits;
  for (size_t i = 0; i < sources.size(); ++i) {
    const double limit = sources[i].max_epochs * static_cast<double>(samples[i]);
    const bool limited = sources[i].max_epochs > 0 && limit < most;
    limits.push_back(limited ? std::max<int64_t>(static_cast<int64_t>(limit), 1) : std::numeric_limits<int64_t>::max());
  }
  return limits;
}

std::vector<MixturePhase> phases_of(const Mixture& mixture, const std::vector<double>& weights) {
  std::vector<MixturePhase> phases = mixture.past;
  if (!phases.empty() && phases.back().until_sample == 0) return phases;
  phases.insert(phases.end(), mixture.phases.begin(), mixture.phases.end());
  phases.push_back({0, weights});
  return phases;
}

// A smaller max_epochs than a source has been given already ends it at the mixture's change, and not before.
std::vector<int64_t> limits_after(const std::vector<MixturePhase>& past, const std::vector<int64_t>& samples,
                                  std::vector<int64_t> limits) {
  if (past.empty() || past.back().until_sample == 0) return limits;
  const int64_t position = past.back().until_sample;
  const std::vector<int64_t> given = SampleOrder(past, samples, 0, false).taken_by(position);
  for (size_t i = 0; i < limits.size(); ++i) limits[i] = std::max({limits[i], given[i], int64_t{1}});
  return limits;
}

// The phases of `mixture` up to a position in the order.
std::vector<MixturePhase> phases_until(const std::vector<MixturePhase>& mixture, int64_t position) {
  std::vector<MixturePhase> phases;
  int64_t first = 0;
  for (const MixturePhase& phase : mixture) {
    const bool is_last = phase.until_sample == 0 || phase.until_sample >= position;
    if (first < position) phases.push_back({is_last ? position : phase.until_sample, phase.weights});
    if (is_last) break;
    first = phase.until_sample;
  }
  return phases;
}

void check_documents(const std::vector<DataSource>& sources, bool mask_documents) {
  for (const DataSource& source : sources) {
    if (!mask_documents) continue;
    for (const std::filesystem::path& file : token_files_of(source.path)) {
      if (!is_flat_token_file(file)) continue;
      throw Error(
          ExitCode::usage,
          "data.mask_documents: {} has no index that tells its documents apart; `gptrain data convert --end-token "
          "ID` makes a token file with one",
          file.native());
    }
  }
}

}  // namespace

struct Dataset::Impl {
  Impl(const std::vector<DataSource>& sources_, int64_t sequence_length_, int64_t vocab_size_, uint64_t seed,
       bool shuffle, bool checksums, const Mixture& mixture)
      : sources(sources_),
        sequence_length(sequence_length_),
        vocab_size(vocab_size_),
        shuffled(shuffle),
        sets(open_sets(sources, sequence_length, vocab_size, checksums)),
        samples(samples_of(sets)),
        weights(weights_of(sources, samples, mixture.temperature)),
        order(phases_of(mixture, weights), samples, seed, shuffle,
              limits_after(mixture.past, samples, limits_of(sources, samples))) {}

  std::vector<DataSource> sources;
  int64_t sequence_length;
  int64_t vocab_size;
  bool shuffled;
  std::vector<TokenSet> sets;
  std::vector<int64_t> samples;  // per epoch
  std::vector<double> weights;
  SampleOrder order;
  LeftOutSamples left_out;

  void read(const SampleLocation& location, int32_t* tokens, int32_t* targets, int32_t* document_starts) const {
    const auto [file, sample_tokens] = sets[location.source].position_of(location.index);
    const int64_t length = sequence_length;
    const int64_t first = sample_tokens.first;
    const int64_t inputs = std::min(sample_tokens.count, length);
    const int64_t counted = sample_tokens.count - 1;  // targets
    file.read({first, inputs}, vocab_size, tokens);
    std::copy(tokens + 1, tokens + inputs, targets);
    if (counted == inputs) file.read({first + inputs, 1}, vocab_size, targets + inputs - 1);
    std::fill(tokens + inputs, tokens + length, 0);
    std::fill(targets + counted, targets + length, -1);
    if (document_starts == nullptr) return;
    file.document_starts({first, inputs}, document_starts);
    std::fill(document_starts + inputs, document_starts + length, static_cast<int32_t>(inputs));
  }

  // Tells where an unreadable sample lies, and how a run continues without it, or without the checksum of its block.
  // Documents have the numbers by which `data inspect` shows them.
  std::string unread(const Error& why, int64_t position, const SampleLocation& location) const {
    const TokenSet& set = sets[location.source];
    const auto [file, tokens] = set.position_of(location.index);
    const auto* const bad = dynamic_cast<const BadToken*>(&why);
    std::string text = fmt::format("{}; sample {} of the order, {} {} of {}", why.what(), position,
                                   bad != nullptr ? "in document" : "which begins in document",
                                   set.document_of(file, bad != nullptr ? bad->position() : tokens.first),
                                   sources[location.source].path);
    if (dynamic_cast<const BadChecksum*>(&why) != nullptr) {
      text += "; restore the file or pack it again, or set data.checksums = false to train on it as it is";
    } else if (shuffled) {
      text += fmt::format("; add {{\"first\": {}, \"count\": 1}} to data.skip_samples to leave it out", position);
    }
    return text;
  }

  // Returns how many of the run's first `num_samples` samples come from each source.
  std::vector<int64_t> taken_by(int64_t num_samples) const {
    const int64_t end = num_samples > 0 ? left_out.position_of(num_samples - 1) + 1 : 0;
    std::vector<int64_t> taken = order.taken_by(end);
    for (const SampleRange& range : left_out.ranges()) {
      if (range.first >= end) break;
      const std::vector<int64_t> before = order.taken_by(range.first),
                                 after = order.taken_by(range.first + range.count);
      for (size_t i = 0; i < taken.size(); ++i) taken[i] -= after[i] - before[i];
    }
    return taken;
  }

  // Returns the sample at which a source repeats: it begins the epoch after the first one of which the run sees a part.
  std::optional<int64_t> first_repeat(size_t source) const {
    int64_t first_seen = 0;  // ordinal in the source
    for (const SampleRange& range : left_out.ranges()) {
      const std::optional<int64_t> position = order.number_of(source, first_seen);
      if (!position || *position < range.first) break;
      const int64_t end = range.first + range.count;
      if (*position < end) first_seen = order.taken_by(end)[source];
    }
    return sample_at(order.number_of(source, (first_seen / samples[source] + 1) * samples[source]));
  }

  // Returns the number of the sample at a position, or of the next one that is not left out.
  std::optional<int64_t> sample_at(std::optional<int64_t> position) const {
    return position ? std::optional(*position - left_out.before(*position)) : std::nullopt;
  }
};

Dataset::Dataset(const std::vector<DataSource>& sources, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
                 bool shuffle, bool checksums, const Mixture& mixture)
    : impl_(std::make_unique<Impl>(sources, sequence_length, vocab_size, seed, shuffle, checksums, mixture)) {}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::leave_out(LeftOutSamples samples) { impl_->left_out = std::move(samples); }

const LeftOutSamples& Dataset::left_out() const { return impl_->left_out; }

void Dataset::read(int64_t sample, int32_t* tokens, int32_t* targets, int32_t* document_starts) const {
  const int64_t position = impl_->left_out.position_of(sample);
  const SampleLocation location = impl_->order.locate(position);
  try {
    impl_->read(location, tokens, targets, document_starts);
  } catch (const Error& error) {
    throw Error(error.code(), "{}", impl_->unread(error, position, location));
  }
}

int64_t Dataset::count_targets(int64_t first, int64_t count) const {
  const std::vector<TokenSet>& sets = impl_->sets;
  if (std::none_of(sets.begin(), sets.end(), [](const TokenSet& set) { return set.is_best_fit(); }))
    return count * impl_->sequence_length;
  int64_t targets = 0;
  for (int64_t sample = first; sample < first + count; ++sample) {
    const SampleLocation location = impl_->order.locate(impl_->left_out.position_of(sample));
    targets += sets[location.source].position_of(location.index).tokens.count - 1;
  }
  if (targets > 0) return targets;
  throw Error(ExitCode::data, "samples {} to {} are documents of one token each, which predict nothing", first,
              first + count - 1);
}

std::vector<SourceRecord> Dataset::sources() const {
  std::vector<SourceRecord> records;
  for (size_t i = 0; i < impl_->sets.size(); ++i) {
    records.push_back(impl_->sets[i].identity());
    records.back().path = impl_->sources[i].path;
    records.back().samples = impl_->samples[i];
  }
  return records;
}

std::vector<MixturePhase> Dataset::mixture() const { return impl_->order.mixture(); }

std::vector<Dataset::SourceReport> Dataset::report(int64_t num_samples) const {
  const SampleOrder& order = impl_->order;
  const double weight_sum = std::accumulate(impl_->weights.begin(), impl_->weights.end(), 0.0);
  const std::vector<int64_t> taken = impl_->taken_by(num_samples);
  std::vector<SourceReport> reports;
  for (size_t i = 0; i < impl_->sources.size(); ++i) {
    const double slots_share = static_cast<double>(order.first_slots()[i]) / static_cast<double>(slots_per_cycle);
    const TokenSet& set = impl_->sets[i];
    const auto positions = static_cast<double>(impl_->samples[i] * impl_->sequence_length);
    const auto targets = static_cast<double>(set.num_tokens() - impl_->samples[i]);
    const double seen_share = static_cast<double>(taken[i]) / static_cast<double>(std::max<int64_t>(num_samples, 1));
    reports.push_back({.path = impl_->sources[i].path,
                       .asked_share = impl_->weights[i] / weight_sum,
                       .share = order.num_phases() > 1 ? seen_share : slots_share,
                       .tokens = set.num_tokens(),
                       .documents = set.num_documents(),
                       .samples = impl_->samples[i],
                       .padding = set.is_best_fit() ? 1 - targets / positions : 0,
                       .epochs = static_cast<double>(taken[i]) / static_cast<double>(impl_->samples[i]),
                       .taken = taken[i],
                       .first_repeat = impl_->first_repeat(i)});
  }
  return reports;
}

int64_t Dataset::count_bytes(int64_t num_samples, const std::vector<int32_t>& bytes) const {
  std::vector<int32_t> tokens(impl_->sequence_length);
  std::vector<int32_t> targets(tokens.size());
  int64_t sum = 0;
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    read(sample, tokens.data(), targets.data());
    for (const int32_t id : targets) sum += static_cast<size_t>(id) < bytes.size() ? bytes[id] : 0;
  }
  return sum;
}

int64_t Dataset::num_samples() const {
  const int64_t positions = impl_->order.num_samples();
  return positions == std::numeric_limits<int64_t>::max() ? positions : positions - impl_->left_out.before(positions);
}

void require_token_files(const DataConfig& data) {
  for (size_t i = 0; i < data.train.size(); ++i) {
    if (data.train[i].tokens == 0) continue;
    throw Error(
        ExitCode::usage,
        "data.train[{}].tokens = {}: only `data mix` and dry runs can do without the files of {}; leave the key "
        "out, and give the path of token files",
        i, data.train[i].tokens, data.train[i].path);
  }
}

Dataset open_training_data(const StepConfig& config, uint64_t seed, const MixtureSoFar& so_far) {
  const DataConfig& data = config.data;
  check_documents(data.train, data.mask_documents);
  const auto change = so_far.change.value_or(MixtureSoFar::Change{0, 0});
  Mixture mixture{.temperature = data.temperature,
                  .phases = {},
                  .past = so_far.change ? phases_until(so_far.phases, change.position) : so_far.phases};
  for (const DataPhase& phase : data.phases) {
    if (phase.until_step <= change.step) continue;
    mixture.phases.push_back({change.position + (phase.until_step - change.step) * config.batch.global, phase.weights});
  }
  Dataset opened(data.train, config.model.sequence_length, config.model.vocab_size, seed, true, data.checksums,
                 mixture);
  opened.leave_out(LeftOutSamples(data.skip_samples));
  return opened;
}

Dataset open_validation_data(const StepConfig& config, uint64_t seed) {
  const DataConfig& data = config.data;
  check_documents(data.validation, data.mask_documents);
  return {data.validation, config.model.sequence_length, config.model.vocab_size, seed, false, data.checksums};
}

}  // namespace gptrain::data
