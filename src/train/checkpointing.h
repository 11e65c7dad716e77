// Checkpoints in the course of a run: what it starts from, when one is due, which are kept, and the last one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "train/folder.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"
#include "train/training_step.h"

namespace gptrain {

// Every rank has one and calls it alike, while no step is under way. Unless it says otherwise, each is collective over
// the world, and its errors are those of save_state and load_state.
class Checkpointing {
 public:
  // Borrows all. `tokenizer`: of the data, where it is known.
  Checkpointing(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
                const std::optional<TokenizerRecord>& tokenizer);

  // Gives the step its state: the checkpoint's, or the initial one, with other weights where they are given. Returns how
  // far the run has come.
  RunProgress start(const std::optional<std::filesystem::path>& checkpoint,
                    const std::optional<std::filesystem::path>& weights);
  // Renames the checkpoints of the folder that are later than `step`. Not collective: rank 0.
  void set_later_aside(int64_t step) const;

  // Whether a checkpoint waits to be saved after `step`, or checkpoint.every_steps asks for one. Not collective.
  bool is_due(int64_t step) const;
  // After each step, which `progress` counts. Saves where a checkpoint is due; but not after a skipped step, which
  // leaves it due, nor after the `last` of this call, after which save_at_end comes.
  void after_step(const RunProgress& progress, bool skipped, bool last);
  // The state when the run ends, finished or stopped, and the report page. Error(checkpoint), too, where the run's
  // folder is lost: says where the state is saved.
  void save_at_end(const RunProgress& progress);
  // Removes the checkpoints that checkpoint.keep_last and keep_every do not keep. Not collective: rank 0 does it.
  void retain() const;

 private:
  void start_from_weights(const std::filesystem::path& checkpoint);
  void save(const RunProgress& progress);
  // What is wrong with the run's folder, and where the state of `step` is instead.
  std::string lost_folder(int64_t step) const;

  const RunContext& context_;
  FolderWatch& folder_;
  TrainingStep& step_;
  Reporter& reporter_;
  const std::optional<TokenizerRecord>& tokenizer_;
  int64_t saved_step_ = -1;
  bool save_due_ = false;
  bool last_skipped_ = false;
};

}  // namespace gptrain
