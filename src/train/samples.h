// Sample texts that the model writes during a run (run.sample_every_steps).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "data/run_tokenizer.h"
#include "step/training_step.h"
#include "train/folder.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"

namespace gptrain::inline train {

// THROWS Error(usage) if the run writes sample texts and the tokenizer is not known, or the prompt has more tokens than
// most_tokens_of_sample allows.
void require_tokenizer_of_samples(const RunSettings& run, int64_t model_vocab_size, const RunTokenizer& tokenizer);

// Every rank has one object and calls it alike, while no step is running. Texts are generated like those of `gptrain
// generate`, on the CPUs of the ranks that share a model. The ranks read the weights from this step's checkpoint, or
// from files in OUT/.sampling that are removed afterwards. While a text is written they use the memory planned as
// MemoryClass::samples. If a host beside a device lacks it, a warning says so and the run goes on without the text.
class Samples {
 public:
  // Borrows all. Collective over the world.
  Samples(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
          const RunTokenizer& tokenizer);

  bool is_due(int64_t step) const;
  // Generates and reports the text of a step. Collective over the world. THROWS Error(checkpoint) if the weights cannot
  // be written.
  void run(const RunProgress& progress);

 private:
  void write_text(const std::filesystem::path& checkpoint, int64_t step);

  const RunContext& context_;
  FolderWatch& folder_;
  std::unique_ptr<RankGroups> groups_;  // groups that use host memory; null if the run writes no samples
  TrainingStep& step_;
  Reporter& reporter_;
  const RunTokenizer& tokenizer_;
};

}  // namespace gptrain::train
