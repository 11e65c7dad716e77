#include "train/resume_changes.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "config/faults.h"
#include "config/load.h"
#include "data/left_out_samples.h"
#include "data/source_record.h"
#include "optim/learning_rate.h"

namespace gptrain::inline train {
namespace {

constexpr double most_rise = 2;

// Returns the position in the order after the last sample that the run has used.
int64_t position_after(const StepConfig& config, const Manifest& manifest) {
  if (manifest.progress.samples == 0) return 0;
  return LeftOutSamples(join(config.data.skip_samples, manifest.progress.left_out))
             .position_of(manifest.progress.samples - 1) +
         1;
}

// Refuses phases of the mixture that the checkpoint's run has passed without them: they would change nothing.
void refuse_passed_phases(const ConfigChange& change, int64_t step) {
  const std::vector<DataPhase>&before = change.saved.data.phases, &asked = change.asked.data.phases;
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto is_same = [&](const DataPhase& phase) {
      return phase.until_step == asked[i].until_step && phase.weights == asked[i].weights;
    };
    if (asked[i].until_step > step || std::any_of(before.begin(), before.end(), is_same)) continue;
    throw Error(ExitCode::usage,
                "data.phases[{}] ends at step {}, and the checkpoint is of step {}: a phase that is over changes "
                "nothing; leave it out, or give it a later until_step",
                i, asked[i].until_step, step);
  }
}

// Returns the step, of those from `first` on, at which the rate is the largest; the first of several.
int64_t step_of_largest_rate(const LrCourse& course, int64_t first) {
  int64_t highest = first;
  double largest = 0;
  for (int64_t step = first; step < course.steps; ++step) {
    const double rate = learning_rate(course, step);
    if (rate > largest) largest = rate, highest = step;
  }
  return highest;
}

// Returns one line for each source that holds other tokens than before. `data` has the new files.
std::vector<std::string> source_changes(const Manifest& manifest, const std::vector<SourceRecord>& now,
                                        const Dataset& data, AcceptedChanges accepted) {
  std::vector<std::string> lines;
  Lines refused;
  for (size_t i = 0; i < now.size() && i < manifest.run.sources.size(); ++i) {
    const SourceRecord& before = manifest.run.sources[i];
    if (is_same_source(before, now[i])) continue;
    const int64_t given = data.report(manifest.progress.samples)[i].taken;
    const ChangedEpoch epoch = changed_epoch(given, before.samples, now[i].samples);
    const std::string repeats = has_same_tokens(before, now[i])
                                    ? "the same tokens, with documents that begin elsewhere; no sample repeats"
                                    : fmt::format("in this epoch about {} repeat and about {} are never seen",
                                                  format_counted(epoch.repeated, "sample"), epoch.missed);
    lines.push_back(
        fmt::format("data.train[{}]: {} -> {}; {}", i, describe_source(before), describe_source(now[i]), repeats));
    refused += Lines("\ndata.train[{}] in the checkpoint: {}\ndata.train[{}] now: {}", i, describe_source(before), i,
                     describe_source(now[i]));
  }
  if (refused.empty() || accepted.data) return lines;
  throw Error(ExitCode::data,
              "the training data are not those that the run was trained on:{}\ngive the path of the old file, or go on "
              "with --accept-changes data, which changes the order and says how many samples repeat",
              refused);
}

}  // namespace

std::vector<std::string> config_changes(const ConfigChange& change, const Manifest& manifest,
                                        AcceptedChanges accepted) {
  const auto& [saved, asked] = change;
  std::vector<std::string> lines = resume_changes(change);
  const int64_t step = manifest.progress.step;
  refuse_passed_phases(change, step);
  if (step >= asked.run.steps) return lines;
  const double planned = learning_rate(saved.lr_course(), std::min(step, saved.run.steps - 1)),
               now = learning_rate(asked.lr_course(), step);
  if (planned != now)
    lines.push_back(fmt::format("learning rate of step {}: {:.2e} -> {:.2e}", step + 1, planned, now));
  if (step == 0) return lines;
  const double last = learning_rate(saved.lr_course(), std::min(step, saved.run.steps) - 1);
  double peak = 0;
  for (const int64_t earlier : {saved.warmup_steps(), saved.warmup_steps() - 1})
    if (earlier >= 0 && earlier < step) peak = std::max(peak, learning_rate(saved.lr_course(), earlier));
  const bool has_decayed = last < peak;
  if (!has_decayed || lines.empty() || accepted.schedule) return lines;
  const int64_t highest = step_of_largest_rate(asked.lr_course(), step);
  const double largest = learning_rate(asked.lr_course(), highest);
  if (largest <= most_rise * last) return lines;
  throw Error(ExitCode::usage,
              "the learning rate, which has fallen to {:.2e} at step {}, would {} to {:.2e} at step {}:\n{}\nkeep the "
              "checkpoint's schedule, or go on with --accept-changes schedule",
              last, step, highest == step ? "jump" : "rise", largest, highest + 1, Lines::join(lines));
}

ResumedData resume_data(const ConfigChange& change, const Manifest& manifest, AcceptedChanges accepted) {
  const auto& [saved, asked] = change;
  Dataset as_asked = open_training_data(asked, asked.run.seed);
  RunRecord record = manifest.run;
  record.sources = as_asked.sources();
  std::vector<std::string> changes = source_changes(manifest, record.sources, as_asked, accepted);
  const bool same = has_same_mixture(change) && changes.empty();
  MixtureSoFar so_far{.phases = manifest.run.mixture, .change = {}};
  if (!same) {
    RunConfig before = saved;
    for (size_t i = 0; i < before.data.train.size(); ++i) {
      before.data.train[i].path = asked.data.train[i].path;
      before.data.train[i].dtype = asked.data.train[i].dtype;
    }
    if (so_far.phases.empty()) so_far.phases = open_training_data(before, before.run.seed).mixture();
    so_far.change = {.step = manifest.progress.step, .position = position_after(asked, manifest)};
  }
  if (so_far.phases.empty())
    return {.train = std::move(as_asked), .record = std::move(record), .changes = std::move(changes)};
  Dataset train = open_training_data(asked, asked.run.seed, so_far);
  record.mixture = train.mixture();
  return {.train = std::move(train), .record = std::move(record), .changes = std::move(changes)};
}

}  // namespace gptrain::train
