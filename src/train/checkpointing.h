// The checkpoints of a run: the one that it starts from, when one is due, how it is saved, which are kept, and the last
// one.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/background_work.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/losses.h"
#include "comm/communicator.h"
#include "step/training_step.h"
#include "train/folder.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"
#include "train/state_save.h"

namespace gptrain::inline train {

// Every rank has one object and makes the same calls, while no step is running. Functions are collective over the world
// and throw like write_state and load_state, unless they say otherwise. A state with numbers that are not finite is not
// saved, which ends the run with Error(diverged).
//
// A save is one piece of work: all ranks write a StateSave, it becomes durable and gets its name, and the checkpoints
// that retention no longer keeps are removed. With checkpoint.asynchronous the StateSave refers to a copy of the state,
// or to clones of its working files, and a thread does the work beside the steps, over a group of its own; at most one
// save at a time. Otherwise, and when the run ends, the StateSave refers to the state itself, and the rank's thread
// does the work at once.
//
// A save that fails beside the steps fails on all ranks, but they notice at different times. A rank that notices asks
// for a stop (has_failed). The error becomes a fault of the run's folder at a point that all ranks reach: before the
// next save, or at the end.
class Checkpointing {
 public:
  // Facts about the data that every manifest records.
  struct DataFacts {
    const std::optional<TokenizerRecord>& tokenizer;  // none: not known
    const RunRecord& record;
  };
  // Borrows all arguments. THROWS as TrainingStep's constructor if there is no memory for the copy of the state.
  Checkpointing(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter, DataFacts data);

  // Sets the step's state: loads `checkpoint`, or else sets the initial state, with the weights of the checkpoint
  // `weights` if given. Returns the run's progress.
  RunProgress start(const std::optional<std::filesystem::path>& checkpoint,
                    const std::optional<std::filesystem::path>& weights);
  // Renames the checkpoints of the folder that are later than `step`. Not collective; call on rank 0.
  void set_later_aside(int64_t step);

  // Returns true if a checkpoint waits to be saved after `step`, if checkpoint.every_steps asks for one, or if it is
  // time to ask rank 0 whether checkpoint.every_seconds does. Not collective.
  bool is_due(int64_t step) const;
  // Call first after each step; `progress` includes the step. If an asynchronous checkpoint is due, waits for the
  // previous one and copies or clones the state. A step that leaves the state `doubtful`, or unlike weights on the
  // ranks, puts the checkpoint off to a later step.
  // After the `last` step of this call of gptrain nothing is copied, as save_at_end saves the state.
  void step_is_over(const RunProgress& progress, bool doubtful, bool last);
  // Saves the checkpoint if one is due, or starts to write it beside the steps. A save that fails is a fault of the
  // run's folder: the run stops, and save_at_end saves the state.
  void save_if_due(const RunProgress& progress);
  // Waits for the save in progress, saves the state at the end of the run, finished or stopped, and writes the report
  // page. If a save fails, tries the next place (FolderWatch). THROWS Error(checkpoint) also if the run's folder is
  // lost or a save has failed; the message says where the state is saved.
  void save_at_end(const RunProgress& progress);
  // Loads the newest checkpoint from before `step`: one of the run's folder, or else the one that the run resumed from.
  // Waits for the save in progress and renames later checkpoints. Returns the progress of the loaded checkpoint; none,
  // with the state unchanged, if there is no such checkpoint.
  std::optional<RunProgress> go_back(int64_t step);
  // Saves the current state under its step again.
  void replace_checkpoint(const RunProgress& progress);
  // Says that the state after the last step may be damaged after all: puts its save off like a doubtful step.
  void distrust();
  // Returns true if this rank knows that a save beside the steps has failed. Not collective.
  bool has_failed() const { return work_ && work_->has_failed(); }
  // Waits for the save in progress when the run ends with another error, and prints a warning if the save has failed.
  // Not collective, but every other rank must call it too, or have exited.
  void end_last_save();
  // Removes the checkpoints that checkpoint.keep_last and keep_every do not keep. Not collective; call on rank 0.
  void retain() const;

 private:
  using Clock = std::chrono::steady_clock;

  // A save, from its start until the rank's thread has handled its end.
  struct Writing {
    std::unique_ptr<SliceMemory> clone;  // memory of the slices if state on disk was cloned; else null
    StateSave save;
    bool retains = false;  // removes older checkpoints at its end
    std::vector<CheckpointInfo>
        known;                 // on rank 0: checkpoints expected on the disk; after the work, those found there
    LowestLoss lowest_before;  // without this checkpoint
    Clock::time_point began;
    // Results of the work.
    double durable_seconds = 0;      // from `began` until durable
    std::string warning = {};        // about checkpoints that are gone, or could not be removed; else empty
    std::string metrics_fault = {};  // reason why metrics were not synced; else empty
  };

  // Prints, with parallel.elastic, how the run's layout differs from that of the run that saved.
  void say_layout_changes(const std::filesystem::path& checkpoint) const;
  void start_from_weights(const std::filesystem::path& checkpoint);
  Writing begin_writing(const RunProgress& progress, const std::vector<StateSlice>& pieces, SliceMemory* memory,
                        Clock::time_point began);
  // Does the work. Any thread.
  void write(Writing& writing, Communicator* all) const;
  std::string remove_others(const std::filesystem::path& out) const;  // returns a warning, else empty
  void save_now(const RunProgress& progress);
  // Waits for the save in progress and handles its end. Rethrows its error.
  void finish_writing();
  // Does the same, but records an error as a fault of the run's folder, so that the run stops. Returns false if the
  // save has failed.
  bool finish_writing_or_stop();
  // Returns the text that says that the checkpoint of `step` could not be saved.
  std::string failure_text(int64_t step, const Error& error) const;
  // Records on rank 0 that it could not be saved, as a fault of the run's folder.
  void note_failure(int64_t step, const Error& error);
  // Throws the error anew, with the way back, if it says that the state after `step` is not finite.
  void pass_on_diverged(int64_t step, const Error& error) const;
  void note_end(const Writing& writing);
  // Returns true if a checkpoint is due after `step` by the clock of rank 0, which also tells all ranks when to ask
  // again: after half of the seconds left, so that few steps wait for rank 0.
  bool is_time(int64_t step);
  bool is_look(int64_t step) const;  // true if all ranks ask after `step`
  // Returns the fault of the run's folder, and the place where the state of `step` is saved instead.
  std::string lost_folder(int64_t step) const;

  const RunContext& context_;
  FolderWatch& folder_;
  TrainingStep& step_;
  Reporter& reporter_;
  const DataFacts data_;
  std::optional<std::filesystem::path> started_from_;
  int64_t started_step_ = 0;           // step of started_from_
  int64_t saved_step_ = -1;            // newest step saved or being written; -1: none
  LowestLoss lowest_loss_ = {};        // lowest loss of the run's checkpoints
  std::vector<CheckpointInfo> known_;  // on rank 0: the checkpoints that should be in the folder
  bool save_due_ = false;
  bool doubtful_ = false;   // the state after the last step may be damaged
  int64_t next_look_ = -1;  // the step after which all ranks ask rank 0; -1: not before the first step
  // Times on rank 0: start of the last save, and last look at the clock.
  Clock::time_point saved_at_ = Clock::now();
  Clock::time_point looked_at_ = saved_at_;
  int64_t looked_step_ = 0;

  std::unique_ptr<Communicator> group_;   // the thread's group; null: no thread, or one rank
  std::unique_ptr<Writing> copied_;       // copied state that save_if_due will write; null: none
  std::unique_ptr<Writing> writing_;      // save in progress; null: none
  std::unique_ptr<BackgroundWork> work_;  // null: no save runs beside the steps. Last: uses the above
};

}  // namespace gptrain::train
