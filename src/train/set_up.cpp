#include "train/set_up.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/process_limits.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_check.h"
#include "comm/agree.h"
#include "comm/texts.h"
#include "data/source_record.h"
#include "data/token_set.h"
#include "train/run_state.h"
#include "train/samples.h"

namespace gptrain::inline train {
namespace {

namespace fs = std::filesystem;

// The last step that this call runs after the `done` ones. Refuses to profile a step that it does not run.
int64_t last_step_of_call(const StepConfig& config, int64_t run_steps, const TrainOptions& options, int64_t done) {
  const int64_t left = std::max<int64_t>(run_steps - done, 0);
  const int64_t last = done + std::min(options.steps.value_or(left), left);
  if (!config.has_equal_weights_after(last, run_steps)) {
    int64_t next = last + 1;
    while (!config.has_equal_weights_after(next, run_steps)) ++next;
    const bool in_islands = config.parallel.local_steps.is_on();
    throw Error(ExitCode::usage,
                "--steps {}: this call would end after step {}, where {} have different weights (--steps {} ends at an "
                "{})",
                *options.steps, last, in_islands ? "the islands of parallel.local_steps" : "the ranks of zero-one-adam",
                next - done, in_islands ? "averaging" : "exchange");
  }
  if (options.profile_step && (*options.profile_step <= done || *options.profile_step > last)) {
    throw Error(ExitCode::usage, "--profile-step {}: {}", *options.profile_step,
                last > done ? fmt::format("this call runs steps {} to {} (choose one of them)", done + 1, last)
                            : fmt::format("no step is left to run: step {} of {} is done", done, run_steps));
  }
  return last;
}

// Checks the disk of the run's folder, which this process has locked. `done`: steps.
std::string warning_of_full_disk(const CheckpointConfig& saving, const RunSettings& run, int64_t done, int64_t bytes) {
  const fs::path out = run.out;
  remove_unfinished_checkpoints(out);  // frees their space; saving warns of those that stay
  const std::vector<CheckpointInfo> found = list_checkpoints(out);
  const auto num_checkpoints =
      std::count_if(found.begin(), found.end(), [&](const CheckpointInfo& info) { return info.step <= done; });
  std::error_code unknown;
  const fs::space_info space = fs::space(out, unknown);
  // Some network file systems do not know their size, and report 0.
  if (unknown || space.capacity == 0) return "";
  return checkpoint_shortage(saving, run, done, num_checkpoints, bytes, space);
}

// Describes a checkpoint by the checksum of its manifest, which holds the checksums of all its files.
std::string describe_checkpoint(const fs::path& checkpoint) {
  const InputFile file(checkpoint / "manifest.json");
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), file.bytes());
  return fmt::format("of step {}, checksum {:08x}", load_manifest(checkpoint).manifest.progress.step,
                     crc32c(text.data(), text.size()));
}

// Opens the training data as the run uses them from its first step on.
ResumedData training_data(const RunConfig& config, const Start& start) {
  require_token_files(config.data);
  if (!start.manifest) {
    Dataset train = open_training_data(config, config.run.seed);
    RunRecord record{.sources = train.sources()};
    return {.train = std::move(train), .record = std::move(record), .changes = {}};
  }
  const RunConfig saved = saved_config(*start.checkpoint, *start.manifest);
  ResumedData resumed = resume_data({saved, config}, *start.manifest, start.accepted);
  resumed.changes.insert(resumed.changes.begin(), start.changes.begin(), start.changes.end());
  return resumed;
}

// Puts the identity of the validation data into the run's record, and adds a line for each source that is another one
// than the checkpoint's.
void note_validation_sources(RunData& data) {
  std::vector<SourceRecord> now;
  if (data.validation) now = data.validation->sources();
  const std::vector<SourceRecord> before = std::exchange(data.record.validation, now);
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (is_same_source(before[i], now[i])) continue;
    data.changes.push_back(
        fmt::format("data.validation[{}]: {} -> {}; validation losses from here on are of other tokens", i,
                    describe_source(before[i]), describe_source(now[i])));
  }
}

// Describes a dataset by its sizes and a checksum of a few samples from all over it.
std::string describe_data(const Dataset& data, int64_t sequence_length) {
  int64_t tokens = 0, documents = 0, samples = 0;
  for (const Dataset::SourceReport& source : data.report(1)) {
    tokens += source.tokens;
    documents += source.documents;
    samples += source.samples;
  }
  constexpr int64_t num_compared = 16;
  std::vector<int32_t> ids(2 * sequence_length);
  uint32_t checksum = 0;
  for (int64_t i = 0; i < num_compared; ++i) {
    try {
      data.read(samples / num_compared * i, ids.data(), ids.data() + sequence_length);
      checksum = crc32c(ids.data(), ids.size() * sizeof(int32_t), checksum);
    } catch (const Error& error) {
      // No error yet: the run may never reach this sample, or leave it out.
      checksum = crc32c(error.what(), std::strlen(error.what()), checksum);
    }
  }
  return fmt::format("{} tokens in {}, checksum {:08x}", tokens, format_counted(documents, "document"), checksum);
}

}  // namespace

void check_length(int64_t batch, int64_t run_steps, const Dataset& data, const RunProgress& progress) {
  const int64_t left = std::max<int64_t>(data.num_samples() - progress.samples, 0);
  const int64_t steps = progress.step + left / batch;
  if (steps >= run_steps) return;
  constexpr int64_t everywhere = std::numeric_limits<int64_t>::max();
  std::string left_out;
  if (const int64_t all = data.left_out().before(everywhere); all > 0) {
    left_out = fmt::format(" without the {} that data.skip_samples and rollbacks leave out ({} for rollbacks)",
                           format_counted(all, "sample"), LeftOutSamples(progress.left_out).before(everywhere));
  }
  throw Error(
      ExitCode::usage,
      "run.steps = {}: every source of data.train has been seen max_epochs times after {}{}; set run.steps to {}, "
      "or a larger max_epochs",
      run_steps, format_counted(steps, "step"), left_out, steps);
}

int ranks_on_this_host(const World& world) {
  int count = 0;
  for (int rank = 0; rank < world.size(); ++rank) count += world.host(rank) == world.host(world.rank()) ? 1 : 0;
  return count;
}

Start choose_start(const RunConfig& config, const TrainOptions& options, int64_t bytes, Communicator* all,
                   const World& world) {
  Start start;
  start.accepted = options.accepted;
  constexpr char resumed = 'r', begun_with = 'w';  // before the path
  const std::string chosen = agree(all, world, [&] {
                               if (world.rank() > 0) return std::string();
                               start.lock = std::make_unique<FolderLock>(config.run.out);
                               if (const auto checkpoint = checkpoint_to_start_from(config, options.resume))
                                 return resumed + checkpoint->string();
                               if (!options.init_from) return std::string();
                               return begun_with + checkpoint_to_init_from(config, *options.init_from).string();
                             }).front();
  if (!chosen.empty()) (chosen[0] == resumed ? start.checkpoint : start.weights) = chosen.substr(1);
  const std::vector<std::string> seen = agree(all, world, [&] {
    if (start.checkpoint) {
      start.manifest = load_manifest(*start.checkpoint).manifest;
      start.changes =
          config_changes({saved_config(*start.checkpoint, *start.manifest), config}, *start.manifest, options.accepted);
    }
    const int64_t done = start.manifest ? start.manifest->progress.step : 0;
    start.last_step = last_step_of_call(config, config.run.steps, options, done);
    if (start.lock) start.warning = warning_of_full_disk(config.checkpoint, config.run, done, bytes);
    if (start.weights) return describe_checkpoint(*start.weights);
    return start.checkpoint ? describe_checkpoint(*start.checkpoint) : std::string();
  });
  agree_on(all, world, [&] {
    for (size_t rank = 1; rank < seen.size() && world.rank() == 0; ++rank) {
      if (seen[rank] == seen[0]) continue;
      throw Error(ExitCode::checkpoint,
                  "{} is {} on rank {} ({}), {} on rank 0 ({}): all ranks must see the same folder", chosen.substr(1),
                  seen[rank], rank, world.host(static_cast<int>(rank)), seen[0], world.host(0));
    }
  });
  return start;
}

RunData open_data(const RunConfig& config, const Start& start, Communicator* all, const World& world) {
  const int64_t length = config.model.sequence_length;
  std::optional<RunData> data;
  const std::vector<std::string> found = agree(all, world, [&] {
    RunTokenizer tokenizer = find_run_tokenizer(config.data, config.model.vocab_size,
                                                start.checkpoint ? read_tokenizer(*start.checkpoint) : std::nullopt);
    require_tokenizer_of_samples(config.run, config.model.vocab_size, tokenizer);
    if (tokenizer.record) require_file_size(std::ssize(tokenizer.record->text), "a checkpoint's file of the tokenizer");
    ResumedData resumed = training_data(config, start);
    data.emplace(RunData{.tokenizer = std::move(tokenizer),
                         .warning = warning_of_repeated_files(config.data.train),
                         .train = std::move(resumed.train),
                         .validation = std::nullopt,
                         .record = std::move(resumed.record),
                         .changes = std::move(resumed.changes)});
    const RunProgress progress =
        start.manifest ? RunProgress{.step = start.manifest->progress.step, .samples = start.manifest->progress.samples}
                       : RunProgress{};
    check_length(config.batch.global, config.run.steps, data->train, progress);
    if (!config.data.validation.empty()) data->validation.emplace(open_validation_data(config, config.run.seed));
    note_validation_sources(*data);
    if (start.manifest && !data->changes.empty())
      data->record.history.push_back({start.manifest->progress.step, data->changes});
    if (all == nullptr) return std::string();
    const std::string train = "training data: " + describe_data(data->train, length);
    return data->validation ? train + "; validation data: " + describe_data(*data->validation, length) : train;
  });
  agree_on(all, world, [&] {
    for (size_t rank = 1; rank < found.size() && world.rank() == 0; ++rank) {
      if (found[rank] != found[0])
        throw Error(ExitCode::device,
                    "rank {} ({}) has other data than rank 0 ({}):\n  {}\n  {}\ncopy the same files to both", rank,
                    world.host(static_cast<int>(rank)), world.host(0), found[rank], found[0]);
    }
  });
  return std::move(*data);
}

std::unique_ptr<UpdateResources> make_update_resources(const StepDesign& design, const RunContext& context) {
  std::unique_ptr<UpdateResources> resources;
  agree_on(context.all(), context.world, [&] {
    resources = std::make_unique<UpdateResources>(design, context.device, context.world.rank(), context.threads);
  });
  return resources;
}

std::unique_ptr<TrainingStep> make_step(std::shared_ptr<const StepDesign> design, const RunContext& context,
                                        const UpdateResources& updates) {
  std::unique_ptr<TrainingStep> step;
  agree_on(context.all(), context.world, [&] {
    step = std::make_unique<TrainingStep>(std::move(design), context.backend, context.groups, updates.device());
  });
  return step;
}

void choose_algorithms(TrainingStep& step, const std::optional<fs::path>& checkpoint, Communicator* all) {
  Backend& backend = step.backend();
  if (backend.algorithms().empty()) return;
  if (checkpoint) {
    const std::string saved = load_manifest(*checkpoint).manifest.algorithms;
    if (!saved.empty()) backend.use_algorithms(saved);
  }
  step.choose_algorithms();
  backend.use_algorithms(broadcast_text(all, backend.algorithms(), 0));
}

}  // namespace gptrain::train
