// Samples of a weighted mixture of token files, in an order that depends on the seed and the sample number only.
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

namespace gptrain {

// How the sources of a run are mixed, beside their own weights.
struct Mixture {
  double temperature = 0;            // see DataConfig
  std::vector<MixturePhase> phases;  // those of the config, in places of the order
  // Phases that come before, as a resumed run has had them. Where the last one has no end, there are no others.
  std::vector<MixturePhase> past = {};
};

// The mixture of a run that goes on from a checkpoint.
struct MixtureSoFar {
  std::vector<MixturePhase> phases;  // of Dataset::mixture(), in the run that saved
  // The step and the place in the order from which on the config's mixture holds; none: `phases` hold on.
  struct Change {
    int64_t step, place;
  };
  std::optional<Change> change;
};

// A sample is T + 1 consecutive tokens of one source, its documents joined end to end; neighbours overlap by one token.
// Source i holds floor((tokens - 1) / T) samples. Order with shuffle: weights are rounded to shares of a cycle of
// 65,536 slots (every source at least one), the slots permuted by key, so that the source of sample n and its ordinal
// there come in O(1), and each epoch of a source ends before its next; within an epoch a keyed permutation. Without
// shuffle: the same mixture, each source in its own order. Weights can follow the sources' sizes, change at given
// samples, and end where a source has been seen often enough.
//
// Of a source whose documents lie in samples (TokenFile::best_fit_length) a sample is one of these: up to T + 1 tokens,
// no neighbour's among them. What is left of its T places is padding: token 0, of a document of its own, and a target
// that does not count.
//
// Samples that are left out have no number; the others keep their places in that order.
class Dataset {
 public:
  // Opens and checks every file. Throws Error(data), naming file and byte, for what is missing, truncated,
  // inconsistent, or too short for one sample, and Error(usage) for samples of another length. `checksums`: see
  // TokenFile.
  Dataset(const std::vector<DataSource>& sources, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
          bool shuffle, bool checksums = true, const Mixture& mixture = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  // Leaves these samples out, and no others, from here on. While nobody reads.
  void leave_out(LeftOutSamples samples);
  const LeftOutSamples& left_out() const;

  // tokens[t] = sample[t], targets[t] = sample[t + 1], t < T, or -1 where that does not count. Safe from several threads.
  // Throws Error(data) naming file and byte for a token >= vocab_size. Does not allocate. Where `document_starts` is
  // given, document_starts[t] is the place in the sample where the document of tokens[t] begins, 0 for one that began
  // before it.
  void read(int64_t sample, int32_t* tokens, int32_t* targets, int32_t* document_starts = nullptr) const;

  // Targets that count of samples [first, first + count), without reading them. Does not allocate. Throws Error(data)
  // where there are none: each sample is a document of one token.
  int64_t count_targets(int64_t first, int64_t count) const;

  struct SourceReport {
    std::string path;
    double asked_share;  // weight / sum of weights, as they are at the beginning
    double share;        // slots / 65536 there, or, where that changes, what `num_samples` samples of the run show
    int64_t tokens;      // in the file
    int64_t documents;
    int64_t samples;  // per epoch
    double padding;   // share of their places
    double epochs;    // seen by `num_samples` samples of the run
    int64_t taken;    // of those samples
    std::optional<int64_t> first_repeat;  // the sample from which on the source gives some again, if it ever does
  };
  // The identity of each source. Throws Error(data): a file cannot be read.
  std::vector<SourceRecord> sources() const;
  // The phases of the order, in places (SampleOrder::mixture).
  std::vector<MixturePhase> mixture() const;
  std::vector<SourceReport> report(int64_t num_samples) const;
  // Bytes of text that the targets of the first `num_samples` samples stand for; `bytes` has those of each id. Reads
  // them all.
  int64_t count_bytes(int64_t num_samples, const std::vector<int32_t>& bytes) const;
  // Samples until every source has been seen as often as it may be; the largest int64_t where there is no such end.
  int64_t num_samples() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The data of a run, opened as Dataset does. Error(usage), too: documents are to be masked, and a source has no index
// that tells them apart.
Dataset open_training_data(const RunConfig& config, const MixtureSoFar& so_far = {});
Dataset open_validation_data(const RunConfig& config);

// The ring into which micro-batches are read ahead, in micro-batches.
struct PrefetchRing {
  int kept;   // that are in use, or on their way to a device: of those that were returned last; less than depth, or 1
  int depth;  // all
};

// Reads micro-batches ahead on one background thread (nice 19) into a ring in the caller's memory, `depth` times
// shape.bytes(). Micro-batch k holds samples first_sample + k stride ... + B - 1: with a stride
// of B all samples, with more those of one of several ranks that take turns. No allocation after the constructor.
class Prefetcher {
 public:
  Prefetcher(const Dataset& dataset, const MicroBatchShape& shape, int64_t first_sample, int64_t stride,
             std::byte* memory, PrefetchRing ring);
  ~Prefetcher();

  // The next micro-batch; the one returned `kept` calls before is given back for reuse. Rethrows what the reader threw.
  // Adds the time spent waiting to waited_seconds().
  const MicroBatch& next();
  // After next() has thrown: a micro-batch of tokens 0 without targets in the place of the one that cannot be read.
  const MicroBatch& blank();
  double waited_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
