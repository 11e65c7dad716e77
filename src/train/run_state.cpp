#include "train/run_state.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <utility>

#include "base/amount.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/contents.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_check.h"
#include "checkpoint/residual_kind.h"
#include "checkpoint/shared_load.h"
#include "comm/agree.h"
#include "config/fields.h"
#include "config/load.h"
#include "data/left_out_samples.h"
#include "step/state_blocks.h"

namespace gptrain::inline train {
namespace {

namespace fs = std::filesystem;

// Shortens the slice to the rows that the checkpoint has.
void keep_stored_rows(Slice& slice, const Contents& contents) {
  const auto stored = contents.tensors.find(slice.name);
  if (stored == contents.tensors.end() || stored->second.front().global_shape.empty()) return;
  const int64_t rows = stored->second.front().global_shape.front();
  slice.global_shape.front() = std::min(slice.global_shape.front(), rows);
  int64_t& held = slice.box.shape.front();
  held = std::clamp<int64_t>(rows - slice.box.offset.front(), 0, held);
}

// Runs `work`, and adds to its errors the name of another checkpoint to use.
template <typename Work>
auto with_way_out_of(const fs::path& checkpoint, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw with_way_out(error, checkpoint);
  }
}

// Runs `work`, and adds to its errors the option that resumes from another checkpoint.
template <typename Work>
auto with_other_to_resume(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const bool has_other = error.code() == ExitCode::checkpoint || error.code() == ExitCode::diverged;
    if (!has_other || *error.what() == '\0') throw;
    throw Error(error.code(), "{} (--resume DIR goes on from the checkpoint DIR)", error.lines());
  }
}

// Fills the slices that `wanted` returns. Each rank reads a share of the files' headers, and one of the data ranks
// reads the slices that they have in common. Returns the checkpoint's contents. Collective over the world.
Contents load_on_all(const fs::path& checkpoint, const RankGroups& groups, const World& world,
                     const std::function<std::vector<Slice>(const Contents&)>& wanted) {
  Communicator* const all = groups.group(GroupKind::world);
  StoredManifest stored;
  const std::vector<std::string> headers = agree(all, world, [&] {
    return with_way_out_of(checkpoint, [&] {
      stored = read_named_manifest(checkpoint);
      return read_headers(checkpoint, stored, world.rank(), world.size());
    });
  });
  Contents contents;
  std::vector<SliceTransfer> transfers;
  agree_on(all, world, [&] {
    with_way_out_of(checkpoint, [&] { contents = contents_of(checkpoint, std::move(stored), headers); });
    transfers = slice_transfers(contents, wanted(contents));
  });
  const SharedLoad loaded = load_shared(contents, std::move(transfers), groups.group(GroupKind::data));
  agree_on(all, world, [&] {
    if (loaded.fault) with_way_out_of(checkpoint, [&] { std::rethrow_exception(loaded.fault); });
  });
  return contents;
}

// Starts the average of the weights from the checkpoint's weights if its run kept none.
void begin_average(std::vector<Slice>& slices, const StepConfig& saved) {
  if (saved.optimizer.ema > 0) return;
  const std::string average = fmt::format("{}/", ema_column);
  for (Slice& slice : slices) {
    if (slice.name.starts_with(average)) slice.name.replace(0, average.size(), "weight/");
  }
}

// Returns an error message if data.skip_samples differs for samples that the run has already passed; else none.
Lines left_out_conflict(const ConfigChange& change, const RunProgress& progress) {
  const auto& [saved, asked] = change;
  const LeftOutSamples before(join(saved.data.skip_samples, progress.left_out));
  const LeftOutSamples now(join(asked.data.skip_samples, progress.left_out));
  constexpr int64_t most = int64_t{1} << 61;  // no overflow below, whatever the manifest says
  const int64_t last = std::min(progress.samples, most) - 1;
  if (last < 0) return {};
  const int64_t end = before.position_of(last) + 1;
  const auto up_to_end = [end](const LeftOutSamples& left_out) {
    std::vector<SampleRange> ranges;
    for (const SampleRange& range : left_out.ranges()) {
      if (range.first < end) ranges.push_back({range.first, std::min(range.count, end - range.first)});
    }
    return ranges;
  };
  if (up_to_end(before) == up_to_end(now)) return {};
  const auto text = [](const auto& config) { return json_text(find_field("data.skip_samples")->get(config)); };
  return Lines(
      "data.skip_samples: must not change for samples before {}, which the checkpoint has passed: {} in the "
      "checkpoint, {} in the config",
      end, text(saved), text(asked));
}

}  // namespace

void save_state(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                const RankGroups& groups, const World& world) {
  const auto memory = make_slice_memory(step);
  write_state(make_state_save(config, step, progress, config.run.out, {},
                              slices_of(step, step.written_state(), StatePart::all, memory.get())),
              groups.group(GroupKind::world), world);
}

void save_weights(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                  const RankGroups& groups, const World& world, const fs::path& out,
                  const std::optional<TokenizerRecord>& tokenizer) {
  const auto memory = make_slice_memory(step);
  write_state(make_state_save(config, step, progress, out, tokenizer,
                              slices_of(step, step.state(true), StatePart::weights, memory.get()), StatePart::weights),
              groups.group(GroupKind::world), world);
}

namespace {

// Returns the number of copies of errors of compressed gradients in a checkpoint (residual_kind).
int64_t num_residual_copies(const Contents& contents) {
  int64_t copies = 0;
  const auto has_next = [&] {
    const auto found = contents.tensors.lower_bound(residual_kind(copies) + "/");
    return found != contents.tensors.end() && found->first.starts_with(residual_kind(copies) + "/");
  };
  while (has_next()) ++copies;
  return copies;
}

// Loads the errors of compressed gradients: each rank its own, or where another number of data ranks or nodes has saved
// them, an equal share of their sum. Loads factors of the same rank. Errors and factors that the checkpoint does not
// have stay as they are. Collective, as all ranks load. `saved_copies`: num_residual_copies of the checkpoint.
void load_residuals(const fs::path& checkpoint, TrainingStep& step, const RankGroups& groups, const World& world,
                    int64_t saved_copies) {
  const CompressionConfig compression = step.design().config.compression();
  if (!compression.is_on() || !compression.error || saved_copies == 0) return;
  const auto memory = make_slice_memory(step);
  const Matrix residuals(step.residuals_at(0), DType::f32, 1, step.design().messages.num_residuals);
  const Matrix loaded(step.residuals_at(1), DType::f32, 1, residuals.cols);
  const int64_t copies = groups.num_data_ranks() / step.design().messages.in_node.size;
  const bool as_saved = saved_copies == copies;
  for (int64_t from = 0; from < (as_saved ? 1 : saved_copies); ++from) {
    load_on_all(checkpoint, groups, world, [&](const Contents& contents) {
      std::vector<StateSlice> pieces = step.residuals();
      std::vector<Slice> slices = slices_of(step, pieces, StatePart::all, memory.get());
      for (size_t i = 0; i < slices.size() && !as_saved; ++i) {
        if (pieces[i].factor != nullptr) {
          if (from > 0) slices[i].name.clear();  // loaded already
          continue;
        }
        slices[i].name = residual_name(from, step.spec().tensors[pieces[i].tensor]);
        slices[i].data = pieces[i].residual - residuals.as<float>() + loaded.as<float>();
      }
      std::erase_if(slices, [&](const Slice& slice) { return !contents.tensors.contains(slice.name); });
      return slices;
    });
    if (as_saved) return;
    const double share = 1 / static_cast<double>(copies);
    if (residuals.cols == 0) continue;
    step.backend().run(WeightedSum{.a = loaded, .a_factor = share, .b = residuals, .b_factor = 1, .to = residuals});
  }
}

}  // namespace

RunProgress load_state(const fs::path& checkpoint, TrainingStep& step, const RankGroups& groups, const World& world) {
  const auto memory = make_slice_memory(step);
  std::optional<OtherBlocks> other_blocks;
  const Contents contents = with_other_to_resume([&] {
    return load_on_all(checkpoint, groups, world, [&](const Contents& stored) {
      step.clear_state();
      const RunConfig saved = saved_config(checkpoint, stored.stored.manifest);
      std::vector<Slice> slices = slices_of(step, step.state(), StatePart::all, memory.get());
      begin_average(slices, saved);
      other_blocks.emplace(step, saved.parallel);
      other_blocks->take_scales(slices);
      return slices;
    });
  });
  other_blocks->reencode();
  const Manifest& manifest = contents.stored.manifest;
  load_residuals(checkpoint, step, groups, world, num_residual_copies(contents));
  step.set_updates(manifest.progress.updates);
  step.set_amax_history(manifest.amax_history);
  if (manifest.loss_scale) step.set_loss_scale(*manifest.loss_scale);
  step.weights_changed();
  return manifest.progress;
}

std::vector<std::string> load_weights(const fs::path& checkpoint, TrainingStep& step, const RankGroups& groups,
                                      const World& world) {
  std::vector<std::string> changes;
  const auto memory = make_slice_memory(step);
  load_on_all(checkpoint, groups, world, [&](const Contents& contents) {
    const RunConfig saved = saved_config(checkpoint, contents.stored.manifest);
    const RunConfig& asked = step.design().config;
    changes = model_changes({saved, asked}).accepted;
    if (asked.precision.pure && !saved.precision.pure)
      changes.emplace_back("weights: fp32 in the checkpoint, rounded to bf16 for precision.compute = bf16-pure");
    std::vector<Slice> slices = slices_of(step, step.state(), StatePart::weights, memory.get());
    for (Slice& slice : slices) {
      keep_stored_rows(slice, contents);
      slice.rounds = true;
    }
    std::erase_if(slices, [](const Slice& slice) { return slice.box.shape.front() == 0; });
    return slices;
  });
  step.weights_changed();
  return changes;
}

fs::path resolve_checkpoint(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "manifest.json", error)) return path;
  if (error) throw Error(ExitCode::checkpoint, "{}: {}", path.string(), error.message());
  // A plain file holds no checkpoints. Listing it as a folder would report that it cannot be read.
  const std::vector<CheckpointInfo> found =
      fs::is_regular_file(path, error) ? std::vector<CheckpointInfo>{} : list_checkpoints(path);
  if (found.empty() && fs::exists(path / "config.json", error)) {
    throw Error(ExitCode::checkpoint,
                "{} is a Hugging Face folder (config.json), not a checkpoint: import it with: gptrain checkpoint "
                "import --hf "
                "{} OUT",
                path.string(), path.string());
  }
  if (found.empty()) {
    throw Error(
        ExitCode::checkpoint,
        "{}: neither a checkpoint (no manifest.json) nor a run's folder with a complete checkpoint; give a run's "
        "run.out, or one of its checkpoints/step-*",
        path.string());
  }
  return found.back().path;
}

std::optional<fs::path> checkpoint_to_resume(const RunConfig& config, const std::string& resume) {
  fs::path checkpoint;
  if (resume == "latest") {
    const std::vector<CheckpointInfo> found = list_checkpoints(config.run.out);
    if (found.empty()) return std::nullopt;
    checkpoint = found.back().path;
  } else {
    checkpoint = resolve_checkpoint(resume);
  }
  const Contents contents = with_other_to_resume([&] {
    read_manifest(checkpoint);  // sizes first, which tell more than headers
    return check_model(checkpoint);
  });
  const Manifest& manifest = contents.stored.manifest;
  const RunProgress& progress = manifest.progress;
  const RunConfig saved = saved_config(checkpoint, manifest);
  Lines conflicts = resume_conflicts({saved, config});
  if (const Lines of_samples = left_out_conflict({saved, config}, progress); !of_samples.empty())
    conflicts = conflicts.empty() ? of_samples : Lines("{}\n{}", conflicts, of_samples);
  if (!conflicts.empty()) {
    throw Error(
        ExitCode::usage,
        "cannot resume {} with this config:\n{}\ngive these keys the checkpoint's values, or start a new run from "
        "its weights with --init-from and another run.out",
        checkpoint.string(), conflicts);
  }
  return checkpoint;
}

fs::path checkpoint_to_init_from(const RunConfig& config, const std::string& asked) {
  fs::path checkpoint = resolve_checkpoint(asked);
  const Contents contents = check_model(checkpoint);
  const RunConfig saved = saved_config(checkpoint, contents.stored.manifest);
  const Lines refused = model_changes({saved, config}).refused;
  if (!refused.empty())
    throw Error(ExitCode::usage,
                "cannot start from the weights of {} with this config:\n{}\ngive these keys the checkpoint's values",
                checkpoint.string(), refused);
  return checkpoint;
}

std::optional<fs::path> checkpoint_to_start_from(const RunConfig& config, const std::optional<std::string>& resume) {
  const std::optional<fs::path> checkpoint = resume ? checkpoint_to_resume(config, *resume) : std::nullopt;
  const fs::path out = config.run.out;
  const std::vector<CheckpointInfo> found = list_checkpoints(out);
  if (found.empty()) return checkpoint;
  if (!checkpoint) {
    throw Error(
        ExitCode::usage,
        "run.out = {}: holds checkpoints up to step {}; go on from them with --resume latest, or choose another "
        "run.out",
        out.string(), found.back().step);
  }
  std::error_code error;
  const fs::path folder = fs::canonical(*checkpoint, error).parent_path();
  // A step's folder may lie elsewhere, behind a link.
  const auto is_asked = [&](const CheckpointInfo& info) {
    std::error_code unreadable;
    return fs::equivalent(info.path, *checkpoint, unreadable);
  };
  const bool is_of_run = !error && (std::any_of(found.begin(), found.end(), is_asked) ||
                                    fs::equivalent(folder, out / "checkpoints", error));
  if (error) throw Error(ExitCode::checkpoint, "cannot read {}: {}", checkpoint->string(), error.message());
  if (!is_of_run) {
    throw Error(ExitCode::usage, "run.out = {}: holds checkpoints of another run than {}; choose another run.out",
                out.string(), checkpoint->string());
  }
  return checkpoint;
}

std::vector<std::string> set_aside_later_checkpoints(const fs::path& out, int64_t step) {
  std::vector<std::string> names;
  for (const CheckpointInfo& info : list_checkpoints(out)) {
    if (info.step <= step) continue;
    fs::path aside = info.path;
    aside += abandoned_suffix;
    std::error_code error;
    for (int n = 2; fs::exists(aside, error); ++n)
      aside = fmt::format("{}{}-{}", info.path.string(), abandoned_suffix, n);
    if (!error) fs::rename(info.path, aside, error);
    if (error) throw Error(ExitCode::checkpoint, "cannot rename {}: {}", info.path.string(), error.message());
    names.push_back(aside.filename().string());
  }
  return names;
}

}  // namespace gptrain::train
