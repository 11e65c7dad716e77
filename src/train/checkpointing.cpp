#include "train/checkpointing.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_check.h"
#include "comm/agree.h"
#include "comm/texts.h"
#include "config/elastic.h"
#include "train/signals.h"

namespace gptrain::inline train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}
double seconds_since(Clock::time_point start) { return seconds_between(start, Clock::now()); }

// Returns the warning that names those of a run's checkpoints that are no longer there, or whose newest cannot be read;
// empty if none is missing.
std::string missing_text(const std::vector<CheckpointInfo>& known) {
  std::string text;
  for (const CheckpointInfo& info : known) {
    std::error_code unknown;
    const fs::file_status status = fs::status(info.path / manifest_name, unknown);
    const bool is_gone = status.type() == fs::file_type::not_found;
    if (!is_gone && (&info != &known.back() || is_sound_checkpoint(info.path))) continue;
    text += fmt::format("{}{} was {} while the run lasted", text.empty() ? "" : "; ", info.path.string(),
                        is_gone ? "removed" : "damaged");
  }
  return text;
}

// Returns the checkpoints of a run's folder; none if it cannot be read.
std::vector<CheckpointInfo> found_checkpoints(const fs::path& out) {
  try {
    return list_checkpoints(out);
  } catch (const Error&) {
    return {};
  }
}

int64_t elements_of(const std::vector<StateSlice>& state) {
  int64_t elements = 0;
  for (const StateSlice& piece : state) elements += piece.count();
  return elements;
}

}  // namespace

Checkpointing::Checkpointing(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
                             DataFacts data)
    : context_(context), folder_(folder), step_(step), reporter_(reporter), data_(data) {
  if (!context.config.checkpoint.keeps_snapshot()) return;
  World& world = context.world;
  agree_on(context.all(), world, [&] {
    try {
      step_.take_snapshot_memory();
    } catch (const Error& error) {
      throw Error(error.code(), "{} (for the copy of the state; checkpoint.asynchronous = false saves without one)",
                  error.what());
    }
    work_ = std::make_unique<BackgroundWork>("writes checkpoints");
  });
  if (world.size() == 1) return;
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  group_ = world.make_group(ranks, {.lane = "checkpoint", .reduces = false, .patient = true});
}

RunProgress Checkpointing::start(const std::optional<fs::path>& checkpoint, const std::optional<fs::path>& weights) {
  if (checkpoint) {
    const RunProgress progress = load_state(*checkpoint, step_, context_.groups, context_.world);
    started_from_ = checkpoint;
    started_step_ = saved_step_ = progress.step;
    lowest_loss_.go_on(progress);
    if (context_.leads() && read_manifest(*checkpoint).run.mixture.size() != data_.record.mixture.size())
      lowest_loss_ = {};
    if (context_.leads()) {
      print_out("resumed from {} (step {})\n", checkpoint->string(), progress.step);
      say_layout_changes(*checkpoint);
      if (const std::string warning = rise_warning(*checkpoint); !warning.empty()) print_err("warning: {}\n", warning);
    }
    return progress;
  }
  if (context_.leads()) {
    const uint64_t seed = context_.config.run.seed;
    if (weights) {
      print_out("starting at step 0 (seed {})\n", seed);
    } else {
      print_out("starting from scratch (seed {})\n", seed);
    }
    flush_lines();
    Progress bar("initial weights", elements_of(step_.state()));
    step_.initialize([&](int64_t drawn) { bar.update(drawn); });
    bar.finish();
  } else {
    step_.initialize();
  }
  if (weights) start_from_weights(*weights);
  return {};
}

void Checkpointing::say_layout_changes(const fs::path& checkpoint) const {
  if (!context_.config.parallel.elastic) return;
  const Manifest manifest = read_manifest(checkpoint);
  const std::string changes =
      layout_changes(saved_config(checkpoint, manifest), manifest.world_size, context_.config, context_.world.size());
  if (!changes.empty()) print_out("elastic: {}\n", changes);
}

void Checkpointing::start_from_weights(const fs::path& checkpoint) {
  const std::vector<std::string> changes = load_weights(checkpoint, step_, context_.groups, context_.world);
  if (!context_.leads()) return;
  print_out("with the weights of {} (step {} of its run)\n", checkpoint.string(),
            read_manifest(checkpoint).progress.step);
  for (const std::string& change : changes) print_out("  {}\n", change);
  if (const std::string warning = rise_warning(checkpoint); !warning.empty()) print_err("warning: {}\n", warning);
  const std::optional<TokenizerRecord> before = read_tokenizer(checkpoint);
  if (before && data_.tokenizer && !is_same_tokenizer(*before, *data_.tokenizer))
    print_err(
        "warning: the data were packed with another tokenizer than that of {}: to its weights these ids are other "
        "tokens; pack the texts with its tokenizer\n",
        checkpoint.string());
  if (before && !data_.tokenizer && !before->text.empty())
    print_out("note: the tokenizer of the data is not known; data.tokenizer = {} is that of the weights\n",
              before->is_bytes() ? "bytes" : (checkpoint / tokenizer_name).string());
}

void Checkpointing::set_later_aside(int64_t step) {
  for (const std::string& name : set_aside_later_checkpoints(folder_.out(), step))
    print_out("later checkpoint set aside: {}\n", name);
  known_ = found_checkpoints(folder_.out());
}

std::optional<RunProgress> Checkpointing::go_back(int64_t step) {
  try {
    finish_writing_or_stop();
  } catch (const Error& error) {
    // The run goes back to before that state.
    if (error.code() != ExitCode::diverged) throw;
  }
  std::vector<CheckpointInfo> found;
  agree_on(context_.all(), context_.world, [&] {
    if (context_.leads()) found = list_checkpoints(folder_.out());
    std::erase_if(found, [&](const CheckpointInfo& info) { return info.step >= step; });
  });
  fs::path chosen;
  if (!found.empty()) {
    chosen = found.back().path;
  } else if (started_from_ && started_step_ < step) {
    chosen = *started_from_;
  }
  chosen = broadcast_text(context_.all(), chosen.string(), 0);
  if (chosen.empty()) return std::nullopt;
  const RunProgress progress = load_state(chosen, step_, context_.groups, context_.world);
  agree_on(context_.all(), context_.world, [&] {
    if (context_.leads()) set_later_aside(progress.step);
  });
  lowest_loss_.go_on(progress);
  // Steps are counted again from here on.
  save_due_ = false;
  next_look_ = -1;
  looked_step_ = 0;
  return progress;
}

void Checkpointing::replace_checkpoint(const RunProgress& progress) {
  saved_step_ = -1;
  doubtful_ = false;
  save_now(progress);
}

bool Checkpointing::is_due(int64_t step) const {
  const int64_t every = context_.config.checkpoint.every_steps;
  return save_due_ || (every > 0 && step % every == 0) || is_look(step);
}

bool Checkpointing::is_look(int64_t step) const {
  return context_.config.checkpoint.every_seconds > 0 && step >= next_look_;
}

bool Checkpointing::is_time(int64_t step) {
  const auto now = Clock::now();
  const double left = context_.config.checkpoint.every_seconds - seconds_between(saved_at_, now);
  int64_t steps = 1;
  if (left > 0 && looked_step_ > 0) {
    const double of_step = seconds_between(looked_at_, now) / static_cast<double>(step - looked_step_);
    constexpr double most_steps = 1e6;
    steps = static_cast<int64_t>(std::clamp(left / 2 / std::max(of_step, 1e-9), 1.0, most_steps));
  }
  looked_at_ = now;
  looked_step_ = step;
  const int64_t told = std::stoll(broadcast_text(context_.all(), fmt::format("{}", left > 0 ? steps : 0), 0));
  next_look_ = step + std::max<int64_t>(told, 1);
  return told == 0;
}

void Checkpointing::step_is_over(const RunProgress& progress, bool doubtful, bool last) {
  const int64_t every = context_.config.checkpoint.every_steps;
  if (is_look(progress.step) && is_time(progress.step)) save_due_ = true;
  if (every > 0 && progress.step % every == 0) save_due_ = true;
  doubtful_ = doubtful;
  if (writing_ && work_->is_over() && !work_->has_failed()) finish_writing();
  // After a skipped step or a high loss the weights may be damaged; a checkpoint of them must not replace a good one.
  if (work_ == nullptr || last || doubtful || !save_due_ || saved_step_ == progress.step) return;
  if (!step_.design().are_equal_after(progress.step)) return;
  context_.world.activity().set_phase("checkpoint");
  const auto began = Clock::now();
  if (writing_) {
    const int64_t before = writing_->save.manifest.progress.step;
    if (!finish_writing_or_stop()) return;
    if (context_.leads())
      print_out("the checkpoint of step {} waited {} for that of step {}, which was still being written\n",
                progress.step, format_duration(seconds_since(began)), before);
  }
  step_.catch_up();
  std::unique_ptr<SliceMemory> clone = make_clone_memory(step_);
  copied_ = std::make_unique<Writing>(begin_writing(progress, step_.copy_state(), clone.get(), began));
  copied_->clone = std::move(clone);
  reporter_.note_checkpoint_cost(seconds_since(began));
}

void Checkpointing::save_if_due(const RunProgress& progress) {
  if (copied_) {
    writing_ = std::move(copied_);
    work_->start([this] { write(*writing_, group_.get()); });
  } else if (work_ == nullptr && save_due_ && !doubtful_ && step_.design().are_equal_after(progress.step)) {
    try {
      save_now(progress);
    } catch (const PeerGone&) {
      throw;
    } catch (const Error& error) {
      pass_on_diverged(progress.step, error);
      note_failure(progress.step, error);
    }
  }
}

void Checkpointing::distrust() {
  doubtful_ = true;
  if (!copied_) return;
  lowest_loss_ = copied_->lowest_before;
  copied_.reset();
  saved_step_ = -1;
  save_due_ = true;
}

Checkpointing::Writing Checkpointing::begin_writing(const RunProgress& progress, const std::vector<StateSlice>& pieces,
                                                    SliceMemory* memory, Clock::time_point began) {
  folder_.move_to(broadcast_text(context_.all(), folder_.place_to_save().string(), 0));
  saved_step_ = progress.step;
  saved_at_ = began;
  save_due_ = false;
  StateSave save = make_state_save(context_.config, step_, progress, folder_.out(), data_.tokenizer,
                                   slices_of(step_, pieces, StatePart::all, memory));
  save.manifest.run = data_.record;
  const LowestLoss lowest_before = lowest_loss_;
  save.manifest.progress.lowest_loss = lowest_loss_.add(progress, context_.config.data.phases);
  return {.clone = nullptr,
          .save = std::move(save),
          // A doubtful state removes no good checkpoint.
          .retains = !doubtful_ && progress.skipped_in_a_row == 0,
          .known = folder_.fault().empty() ? known_ : std::vector<CheckpointInfo>(),
          .lowest_before = lowest_before,
          .began = began};
}

void Checkpointing::write(Writing& writing, Communicator* all) const {
  // No checkpoint is ever ahead of its metrics.
  write_state(writing.save, all, context_.world, [&] { writing.metrics_fault = reporter_.sync_metrics(); });
  writing.durable_seconds = seconds_since(writing.began);
  if (!context_.leads()) return;
  writing.warning = missing_text(writing.known);
  if (writing.retains) {
    const std::string retention = remove_others(writing.save.out);
    writing.warning += (writing.warning.empty() || retention.empty() ? "" : "; ") + retention;
  }
  writing.known = found_checkpoints(writing.save.out);
}

void Checkpointing::save_now(const RunProgress& progress) {
  if (saved_step_ == progress.step) return;
  context_.world.activity().set_phase("checkpoint");
  const auto began = Clock::now();
  step_.catch_up();
  const auto memory = make_slice_memory(step_);
  Writing writing = begin_writing(progress, step_.written_state(), memory.get(), began);
  try {
    write(writing, context_.all());
  } catch (...) {
    saved_step_ = -1;
    throw;
  }
  reporter_.note_checkpoint_cost(seconds_since(began));
  note_end(writing);
}

void Checkpointing::finish_writing() {
  if (!writing_) return;
  try {
    work_->wait();
  } catch (...) {
    saved_step_ = -1;
    writing_.reset();
    throw;
  }
  note_end(*writing_);
  writing_.reset();
}

void Checkpointing::note_end(const Writing& writing) {
  known_ = writing.known;
  if (!writing.metrics_fault.empty()) folder_.fail(writing.metrics_fault);
  reporter_.note_durable(writing.durable_seconds);
  if (!context_.leads()) return;
  print_out("checkpoint of step {} saved in {}\n", writing.save.manifest.progress.step,
            format_duration(writing.durable_seconds));
  if (!writing.warning.empty()) print_err("warning: {}\n", writing.warning);
}

bool Checkpointing::finish_writing_or_stop() {
  const int64_t step = writing_ ? writing_->save.manifest.progress.step : 0;
  try {
    finish_writing();
    return true;
  } catch (const PeerGone&) {
    throw;
  } catch (const Error& error) {
    pass_on_diverged(step, error);
    note_failure(step, error);
    return false;
  }
}

std::string Checkpointing::failure_text(int64_t step, const Error& error) const {
  return fmt::format("run.out = {}: the checkpoint of step {} could not be saved: {}", context_.config.run.out, step,
                     error.what());
}

void Checkpointing::pass_on_diverged(int64_t step, const Error& error) const {
  if (error.code() != ExitCode::diverged) return;
  if (!context_.leads()) throw Error(ExitCode::diverged, std::string());
  const bool has_others = !found_checkpoints(folder_.out()).empty();
  throw Error(ExitCode::diverged, "training diverged: the state after step {} is not saved: {}; {}{}", step,
              error.what(), has_others ? "earlier checkpoints are untouched" : "no checkpoint was saved before",
              way_before_rise(folder_.out()));
}

void Checkpointing::note_failure(int64_t step, const Error& error) {
  if (!context_.leads()) return;
  folder_.look();  // A lost folder is the cause, and the clearer fault.
  folder_.fail(failure_text(step, error));
}

// If the folder cannot be written any more, the state is saved elsewhere, and the run ends with an error.
void Checkpointing::save_at_end(const RunProgress& progress) {
  finish_writing_or_stop();
  for (bool saved = false; !saved;) {
    try {
      save_now(progress);
      saved = true;
    } catch (const PeerGone&) {
      throw;
    } catch (const Error& error) {
      pass_on_diverged(progress.step, error);
      const std::string before = folder_.fault();
      const bool goes_on = context_.leads() && folder_.has_other_place(failure_text(progress.step, error));
      if (!broadcast_text(context_.all(), goes_on ? "yes" : "", 0).empty()) continue;
      if (before.empty()) throw;
      throw Error(ExitCode::checkpoint, "{}; the state after step {} cannot be saved: {}", before, progress.step,
                  error.what());
    }
  }
  folder_.record([&] { reporter_.write_page(); });
  if (broadcast_text(context_.all(), folder_.fault(), 0).empty()) return;
  throw Error(ExitCode::checkpoint, context_.leads() ? lost_folder(progress.step) : std::string());
}

void Checkpointing::end_last_save() {
  copied_.reset();
  if (!writing_) return;
  const int64_t step = writing_->save.manifest.progress.step;
  try {
    finish_writing();
  } catch (const std::exception& error) {
    if (context_.leads()) print_err("warning: the checkpoint of step {} was not saved: {}\n", step, error.what());
  }
}

std::string Checkpointing::lost_folder(int64_t step) const {
  const fs::path checkpoints = folder_.out() / "checkpoints";
  return fmt::format("{}; the state after step {} is saved in {}", folder_.fault(), step,
                     FolderLock::is_out_of_sight(checkpoints) ? "that folder's checkpoints" : checkpoints.string());
}

std::string Checkpointing::remove_others(const fs::path& out) const {
  const CheckpointConfig& retention = context_.config.checkpoint;
  return apply_retention(out, retention.keep_last, retention.keep_every);
}

void Checkpointing::retain() const {
  if (!context_.leads()) return;
  const std::string warning = remove_others(folder_.out());
  if (!warning.empty()) print_err("warning: {}\n", warning);
}

}  // namespace gptrain::train
