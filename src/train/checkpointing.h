// Checkpoints in the course of a run: what it starts from, when one is due, how it is saved, which are kept, and the
// last one.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "step/training_step.h"
#include "train/background_work.h"
#include "train/folder.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"
#include "train/state_save.h"

namespace gptrain {

// Every rank has one and calls it alike, while no step is under way. Unless it says otherwise, each is collective over
// the world, and its errors are those of write_state and load_state.
//
// A save goes one way: a StateSave is written by all ranks, made durable, named, and what it makes dispensable is
// removed; that is one piece of work. With checkpoint.asynchronous the StateSave refers to a copy of the state, and the
// work is done by a thread of its own over a group of its own, beside the steps; at most one at a time. Otherwise, and
// when the run ends, it refers to the state itself, and the rank's thread does the work at once.
//
// Work that fails beside the steps fails on all ranks, but each finds that when it looks. So a rank that does asks for
// a stop (has_failed), and the error is thrown where all ranks have come to the same place: before the next save, or at
// the end.
class Checkpointing {
 public:
  // What manifests say of the data.
  struct DataFacts {
    const std::optional<TokenizerRecord>& tokenizer;  // where it is known
    const RunRecord& record;
  };
  // Borrows all. Error(device): no memory for the copy.
  Checkpointing(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter, DataFacts data);

  // Gives the step its state: the checkpoint's, or the initial one, with other weights where they are given. Returns
  // how far the run has come.
  RunProgress start(const std::optional<std::filesystem::path>& checkpoint,
                    const std::optional<std::filesystem::path>& weights);
  // Renames the checkpoints of the folder that are later than `step`. Not collective: rank 0.
  void set_later_aside(int64_t step) const;

  // Whether a checkpoint waits to be saved after `step`, or checkpoint.every_steps asks for one, or it is time to look
  // whether checkpoint.every_seconds does. Not collective.
  bool is_due(int64_t step) const;
  // First thing after each step, which `progress` counts. Where a checkpoint is due that is written beside the steps,
  // waits for the one before, and copies the state. None is due after a step that leaves the state `doubtful`, which
  // leaves it due, nor after the `last` of this call, after which save_at_end comes.
  void step_is_over(const RunProgress& progress, bool doubtful, bool last);
  // Saves the checkpoint that is due, or has it written from here on.
  void save_if_due(const RunProgress& progress);
  // The state when the run ends, finished or stopped, and the report page; what is being written is waited for.
  // Error(checkpoint), too, where the run's folder is lost: says where the state is saved.
  void save_at_end(const RunProgress& progress);
  // Gives the step the state of the newest checkpoint from before `step`: of the run's folder, or else the one that was
  // resumed. What is being written is waited for, and later ones are renamed. Returns how far that one had come;
  // nothing, and the state is as it was, where there is none.
  std::optional<RunProgress> go_back(int64_t step);
  // Saves the state of now under its step, where it has been saved before.
  void save_again(const RunProgress& progress);
  // Whether what is written beside the steps has failed, as far as this rank knows. Not collective.
  bool has_failed() const { return work_ && work_->has_failed(); }
  // Waits for what is being written, where the run ends with another error; a warning says what has failed. Not
  // collective, but all ranks must come here, or be gone.
  void settle();
  // Removes the checkpoints that checkpoint.keep_last and keep_every do not keep. Not collective: rank 0 does it.
  void retain() const;

 private:
  using Clock = std::chrono::steady_clock;

  // A save from its begin to where the rank's thread has taken note of its end.
  struct Writing {
    StateSave save;
    bool retains = false;  // its end makes others dispensable
    Clock::time_point began;
    // What the work leaves.
    double durable_seconds = 0;      // since it began
    std::string warning = {};        // of what could not be removed
    std::string metrics_fault = {};  // what kept them from being synced
  };

  // With parallel.elastic, what the run has otherwise than the one that saved.
  void say_layout_changes(const std::filesystem::path& checkpoint) const;
  void start_from_weights(const std::filesystem::path& checkpoint);
  Writing begin_writing(const RunProgress& progress, const std::vector<StatePiece>& pieces, SliceMemory* memory,
                        Clock::time_point began);
  // The work. Any thread.
  void write(Writing& writing, Communicator* all) const;
  std::string remove_others(const std::filesystem::path& out) const;  // returns a warning, or nothing
  void save_now(const RunProgress& progress);
  // Takes note of the end of what is being written, which it waits for; throws what that has failed with.
  void finish_writing();
  // The same, but where the run's folder is lost, no failure: later states go to another place, and the end says so.
  void finish_writing_or_move();
  void note_end(const Writing& writing);
  // Whether a checkpoint is due after `step` by the clock of rank 0, which also says when all ranks are to ask again:
  // the seconds left are halved each time, so that few steps wait for it.
  bool is_time(int64_t step);
  bool is_look(int64_t step) const;  // whether all ranks ask after `step`
  // What is wrong with the run's folder, and where the state of `step` is instead.
  std::string lost_folder(int64_t step) const;

  const RunContext& context_;
  FolderWatch& folder_;
  TrainingStep& step_;
  Reporter& reporter_;
  const DataFacts data_;
  std::optional<std::filesystem::path> started_from_;
  int64_t started_step_ = 0;  // of that checkpoint
  int64_t saved_step_ = -1;   // or being written
  bool save_due_ = false;
  bool doubtful_ = false;   // the state after the last step
  int64_t next_look_ = -1;  // the step after which all ranks ask rank 0; -1: not before the first step
  // Of rank 0: when the last save began, and the last look.
  Clock::time_point saved_at_ = Clock::now();
  Clock::time_point looked_at_ = saved_at_;
  int64_t looked_step_ = 0;

  std::unique_ptr<Communicator> group_;   // of the thread; null, too: there is one rank
  std::unique_ptr<Writing> copied_;       // waits for save_if_due
  std::unique_ptr<Writing> writing_;      // the thread's
  std::unique_ptr<BackgroundWork> work_;  // null: nothing is written beside the steps. After what it refers to
};

}  // namespace gptrain
