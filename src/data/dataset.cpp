#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "data/sample_order.h"
#include "data/token_file.h"

namespace gptrain {
namespace {

std::vector<TokenFile> open_files(const std::vector<DataSource>& sources, int64_t sequence_length, bool checksums) {
  std::vector<TokenFile> files;
  files.reserve(sources.size());
  for (const DataSource& source : sources) {
    const TokenFile& file = files.emplace_back(source.path, checksums);
    if (samples_per_epoch(file.num_tokens(), sequence_length) == 0) {
      throw Error(ExitCode::data,
                  "{}: {} tokens are too few for one sample of model.sequence_length + 1 = {} tokens; use more text or "
                  "shorter sequences",
                  token_file_path(source.path, ".bin").native(), file.num_tokens(), sequence_length + 1);
    }
  }
  return files;
}

std::vector<int64_t> slots_of(const std::vector<DataSource>& sources) {
  if (sources.empty() || sources.size() > static_cast<size_t>(slots_per_cycle)) {
    throw Error(ExitCode::usage, "{} data sources; there must be from 1 to {}", sources.size(), slots_per_cycle);
  }
  std::vector<double> weights;
  double sum = 0;
  for (const DataSource& source : sources) {
    weights.push_back(source.weight);
    sum += source.weight;
    if (!(source.weight > 0) || !std::isfinite(sum)) {
      throw Error(ExitCode::usage, "weight {} of data source {}: weights must be positive with a finite sum",
                  source.weight, source.path);
    }
  }
  return round_to_slots(weights);
}

std::vector<int64_t> samples_of(const std::vector<TokenFile>& files, int64_t sequence_length) {
  std::vector<int64_t> samples;
  for (const TokenFile& file : files) samples.push_back(samples_per_epoch(file.num_tokens(), sequence_length));
  return samples;
}

}  // namespace

struct Dataset::Impl {
  Impl(const std::vector<DataSource>& sources_, int64_t sequence_length_, int64_t vocab_size_, uint64_t seed,
       bool shuffle, bool checksums)
      : sources(sources_),
        sequence_length(sequence_length_),
        vocab_size(vocab_size_),
        slots(slots_of(sources)),
        files(open_files(sources, sequence_length, checksums)),
        samples(samples_of(files, sequence_length)),
        order(slots, samples, seed, shuffle) {}

  std::vector<DataSource> sources;
  int64_t sequence_length;
  int64_t vocab_size;
  std::vector<int64_t> slots;
  std::vector<TokenFile> files;
  std::vector<int64_t> samples;  // per epoch
  SampleOrder order;
};

Dataset::Dataset(const std::vector<DataSource>& sources, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
                 bool shuffle, bool checksums)
    : impl_(std::make_unique<Impl>(sources, sequence_length, vocab_size, seed, shuffle, checksums)) {}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::read(int64_t sample, int32_t* tokens, int32_t* targets, int32_t* document_starts) const {
  const SampleLocation location = impl_->order.locate(sample);
  const TokenFile& file = impl_->files[location.source];
  const int64_t length = impl_->sequence_length;
  const int64_t first = location.index * length;
  file.read({first, length}, impl_->vocab_size, tokens);
  std::copy(tokens + 1, tokens + length, targets);
  file.read({first + length, 1}, impl_->vocab_size, targets + length - 1);
  if (document_starts != nullptr) file.document_starts({first, length}, document_starts);
}

std::vector<Dataset::SourceReport> Dataset::report(int64_t num_samples) const {
  double weight_sum = 0;
  for (const DataSource& source : impl_->sources) weight_sum += source.weight;
  const std::vector<int64_t> taken = impl_->order.taken_by(num_samples);
  std::vector<SourceReport> reports;
  for (size_t i = 0; i < impl_->sources.size(); ++i) {
    const DataSource& source = impl_->sources[i];
    reports.push_back({.path = source.path,
                       .asked_share = source.weight / weight_sum,
                       .share = static_cast<double>(impl_->slots[i]) / static_cast<double>(slots_per_cycle),
                       .tokens = impl_->files[i].num_tokens(),
                       .documents = impl_->files[i].num_documents(),
                       .samples = impl_->samples[i],
                       .epochs = static_cast<double>(taken[i]) / static_cast<double>(impl_->samples[i])});
  }
  return reports;
}

}  // namespace gptrain
