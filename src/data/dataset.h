// Samples of a weighted mixture of token files, in an order that depends only on the seed and the sample number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/left_out_samples.h"
#include "data/sample_order.h"
#include "data/source_record.h"
#include "model/micro_batch.h"

namespace gptrain::inline data {

// Mixing of a run's sources beyond their own weights.
struct Mixture {
  double temperature = 0;            // see DataConfig; 0: weights are used as given
  std::vector<MixturePhase> phases;  // the config's phases, until_sample as a position; the sources' own weights follow
  // Phases before these, of a resumed run. If the last one has no end (until_sample 0), `phases` are not used.
  std::vector<MixturePhase> past = {};
};

// The mixture of a run that goes on from a checkpoint.
struct MixtureSoFar {
  std::vector<MixturePhase> phases;  // Dataset::mixture() of the run that saved
  // Step and position from which the config's mixture holds instead; none: `phases` continue.
  struct Change {
    int64_t step, position;
  };
  std::optional<Change> change;
};

// A sample is T + 1 consecutive tokens of one source, whose documents are joined end to end; neighbours overlap by one
// token. Source i has floor((tokens - 1) / T) samples. With shuffle, weights are rounded to shares of a cycle of 65,536
// slots (at least one per source), which a key permutes. So the source of sample n and its ordinal there are found in
// O(1), and each epoch of a source ends before its next begins; within an epoch samples are in a keyed permutation.
// Without shuffle: the same mixture, each source in file order. Weights can depend on the sources' sizes, change at
// given samples, and end once a source has been seen often enough.
//
// In a source packed into samples (TokenFile::best_fit_length) a sample is one of these: up to T + 1 tokens, without
// overlap. The rest of its T positions is padding: token 0 in a document of its own, with a target that does not count.
//
// Left-out samples have no number; the others keep their positions in the order. A position is thus a sample's number
// with left-out samples counted (SampleOrder), and a sample's number counts those that a run sees.
class Dataset {
 public:
  // Opens and checks every file. Throws Error(data), with file and byte, for files that are missing, truncated,
  // inconsistent, or too short for one sample, or that are known to hold ids >= vocab_size, and Error(usage) for packed
  // samples of another length, weights that are not positive, or no sources. `checksums`: see TokenFile.
  Dataset(const std::vector<DataSource>& sources, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
          bool shuffle, bool checksums = true, const Mixture& mixture = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  // Leaves out these samples, and no others, from now on. REQUIRES: no concurrent read.
  void leave_out(LeftOutSamples samples);
  // Returns the samples that are left out, by position.
  const LeftOutSamples& left_out() const;

  // Reads a sample by its number, of T positions: tokens[t] = sample[t]; targets[t] = sample[t + 1], or -1 if it does
  // not count; t < T. If `document_starts` is given, document_starts[t] is the position in the sample where the
  // document of tokens[t] begins, 0 if it began earlier. Thread-safe; does not allocate. Throws Error(data), with file
  // and byte, for a token >= vocab_size.
  void read(int64_t sample, int32_t* tokens, int32_t* targets, int32_t* document_starts = nullptr) const;

  // Returns the number of counted targets of samples [first, first + count), without reading them. Does not allocate.
  // Throws Error(data) if it is 0: each sample is a document of one token.
  int64_t count_targets(int64_t first, int64_t count) const;

  struct SourceReport {
    std::string path;
    double asked_share;  // weight / sum of weights, at the beginning
    double share;        // slots / 65536, or if weights change, the share in the run's first `num_samples` samples
    int64_t tokens;      // tokens in the file
    int64_t documents;
    int64_t samples;                      // per epoch
    double padding;                       // share of the samples' positions that are padding; 0 unless packed
    double epochs;                        // seen in the first `num_samples` samples
    int64_t taken;                        // number of those samples
    std::optional<int64_t> first_repeat;  // first sample of the run that repeats one of this source; nullopt: never
  };
  // The identity of each source. Throws Error(data): a file cannot be read.
  std::vector<SourceRecord> sources() const;
  // The phases of the order, in positions (SampleOrder::mixture).
  std::vector<MixturePhase> mixture() const;
  // Returns a report of each source for a run of `num_samples` samples. Reads no tokens.
  std::vector<SourceReport> report(int64_t num_samples) const;
  // Returns the bytes of text of the first `num_samples` samples' targets, all of which it reads. `bytes`: text bytes
  // of each id; ids after its end count 0. Throws as `read` does.
  int64_t count_bytes(int64_t num_samples, const std::vector<int32_t>& bytes) const;
  // Returns the number of samples until every source has been seen as often as allowed; the largest int64_t if
  // unlimited.
  int64_t num_samples() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// THROWS Error(usage) if a source of training is told by its tokens alone (DataSource::tokens) and cannot be read.
void require_token_files(const DataConfig& data);

// Opens data.train: shuffled, mixed by temperature and phases, without data.skip_samples. `so_far`: the mixture of the
// resumed run; empty for a new one. Throws as Dataset does, and Error(usage) if documents are to be masked and a source
// has no index that separates them.
Dataset open_training_data(const StepConfig& config, uint64_t seed, const MixtureSoFar& so_far = {});
// Opens data.validation, each source in file order. Throws as open_training_data does.
Dataset open_validation_data(const StepConfig& config, uint64_t seed);

}  // namespace gptrain::data
