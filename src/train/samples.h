// Texts that the model writes in the course of a run, for people to read: run.sample_every_steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "data/run_tokenizer.h"
#include "train/folder.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"
#include "step/training_step.h"

namespace gptrain {

// Error(usage) where a run is to write texts and no tokenizer is known, or where the prompt has more tokens than that.
void require_tokenizer_of_samples(const RunConfig& config, const RunTokenizer& tokenizer);

// Every rank has one and calls it alike, while no step is under way. A text is written as `gptrain generate` writes it,
// on the CPUs of the ranks that share a model, with weights that go through files: of the checkpoint of this step, or
// of one in OUT/.sampling that holds weights only, and is gone afterwards. Meanwhile they take the memory that is
// planned as MemoryClass::samples; where a host beside a device has none, a warning says so and the run goes on.
class Samples {
 public:
  // Borrows all. Collective over the world.
  Samples(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
          const RunTokenizer& tokenizer);

  bool is_due(int64_t step) const;
  // Collective over the world. Error(checkpoint): the weights cannot be written.
  void run(const RunProgress& progress);

 private:
  void write_text(const std::filesystem::path& checkpoint, int64_t step);

  const RunContext& context_;
  FolderWatch& folder_;
  std::unique_ptr<RankGroups> groups_;  // on the host's memory; null: there are no samples
  TrainingStep& step_;
  Reporter& reporter_;
  const RunTokenizer& tokenizer_;
};

}  // namespace gptrain
