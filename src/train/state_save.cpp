#include "train/state_save.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/residual_kind.h"
#include "comm/agree.h"
#include "comm/texts.h"
#include "config/load.h"
#include "ops/side_queue.h"
#include "parallel/away_state.h"
#include "parallel/gradient_sums.h"
#include "parallel/island_average.h"

namespace gptrain::inline train {
namespace {

// Reads device memory through two buffers of pinned memory: one is filled while the other is written to the file.
class DeviceState final : public SliceMemory {
 public:
  explicit DeviceState(Backend& backend) : backend_(backend) {}
  void read(const std::byte* from, int64_t bytes, const Take& take) override {
    if (queue_ == nullptr) {
      queue_ = backend_.make_side_queue();
      pinned_ = queue_->allocate_host(2 * piece_bytes);
    }
    const auto bytes_of = [&](int64_t piece) { return std::min(bytes - piece * piece_bytes, piece_bytes); };
    const auto buffer_of = [&](int64_t piece) { return pinned_->data() + piece % 2 * piece_bytes; };
    const auto fetch = [&](int64_t piece) {
      queue_->queue_download(buffer_of(piece), from + piece * piece_bytes, bytes_of(piece));
      queue_->mark_work(static_cast<int>(piece % 2));
    };
    queue_->mark_ops(0);
    queue_->follow_ops(0);
    const int64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
    if (pieces > 0) fetch(0);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      if (piece + 1 < pieces) fetch(piece + 1);
      queue_->await_work(static_cast<int>(piece % 2));
      take(buffer_of(piece), bytes_of(piece));
    }
  }
  void write(std::byte* to, const std::byte* from, int64_t bytes) override { backend_.upload(to, from, bytes); }

 private:
  static constexpr int64_t piece_bytes = int64_t{4} << 20;

  Backend& backend_;
  std::unique_ptr<SideQueue> queue_;  // null before the first read
  std::unique_ptr<DeviceMemory> pinned_;
};

// Reads and writes host memory, state that is away, and with it the memory of the ops' GPU.
class AwaySlices final : public SliceMemory {
 public:
  explicit AwaySlices(const TrainingStep& step) : step_(step) {
    if (step.backend().target().kind == Target::Kind::gpu) device_.emplace(step.backend());
  }
  void read(const std::byte* from, int64_t bytes, const Take& take) override {
    if (device_ && !step_.is_on_host(from)) return device_->read(from, bytes, take);
    take(step_.fetched(from), bytes);
  }
  void write(std::byte* to, const std::byte* from, int64_t bytes) override { step_.write_state(to, from, bytes); }

 private:
  const TrainingStep& step_;
  std::optional<DeviceState> device_;  // empty on a CPU
};

// Reads host memory and clones of working files.
class ClonedSlices final : public SliceMemory {
 public:
  explicit ClonedSlices(TrainingStep::ReadClone clone) : clone_(std::move(clone)) {}
  void read(const std::byte* from, int64_t bytes, const Take& take) override {
    if (!is_away_address(from)) return take(from, bytes);
    clone_(from, bytes, take);
  }
  void write(std::byte*, const std::byte*, int64_t) override { throw std::logic_error("clones are only read"); }

 private:
  const TrainingStep::ReadClone clone_;
};

}  // namespace

std::unique_ptr<SliceMemory> make_clone_memory(TrainingStep& step) {
  TrainingStep::ReadClone clone = step.clone_state();
  return clone ? std::make_unique<ClonedSlices>(std::move(clone)) : nullptr;
}

std::unique_ptr<SliceMemory> make_slice_memory(const TrainingStep& step) {
  if (step.has_state_away()) return std::make_unique<AwaySlices>(step);
  if (step.backend().target().kind == Target::Kind::cpu) return nullptr;
  return std::make_unique<DeviceState>(step.backend());
}

std::string residual_name(int64_t copy, const TensorSpec& tensor) {
  return fmt::format("{}/{}", residual_kind(copy), tensor.name);
}

std::vector<Slice> slices_of(const TrainingStep& step, const std::vector<StateSlice>& pieces, StatePart part,
                             SliceMemory* memory) {
  std::vector<Slice> slices;
  for (const StateSlice& piece : pieces) {
    const TensorSpec& spec = step.spec().tensors[piece.tensor];
    const auto add_as = [&](std::string name, void* data, DType dtype) {
      slices.push_back({.name = std::move(name),
                        .global_shape = spec.shape,
                        .box = piece,
                        .data = data,
                        .memory = memory,
                        .dtype = dtype});
    };
    const auto add = [&](std::string_view kind, void* data, DType dtype) {
      add_as(fmt::format("{}/{}", kind, spec.name), data, dtype);
    };
    if (piece.residual != nullptr) {
      if (part == StatePart::all)
        add_as(residual_name(step.groups().data_rank() / step.design().messages.in_node.size, spec), piece.residual,
               DType::f32);
      continue;
    }
    if (piece.factor != nullptr) {
      if (part != StatePart::all) continue;
      add(factor_kind(piece.shape[0], step.design().config.compression().alternate), piece.factor, DType::f32);
      slices.back().global_shape = piece.shape;
      continue;
    }
    if (piece.weight != nullptr) {
      add("weight", piece.weight, DType::f32);
    } else if (piece.narrow_weight != nullptr) {
      add("weight", piece.narrow_weight, DType::bf16);
    }
    const StateColumns& columns = step.parameters().columns();
    for (size_t i = 0; i < columns.size() && part == StatePart::all; ++i) {
      if (piece.columns[i] == nullptr) continue;
      const bool is_same = columns[i].name == outer_momentum_column || step.design().config.parallel.zero_node_copy;
      const int64_t island = is_same ? 0 : step.groups().island();
      add(island_kind(columns[i].name, island), piece.columns[i], columns[i].dtype);
      const TensorShard& shard = (*step.design().shards)[piece.tensor];
      Slice& slice = slices.back();
      slice.global_shape = stored_shape(columns[i], spec, shard);
      if (columns[i].granularity == StateGranularity::block) {
        slice.box = {{piece.first_block}, {piece.num_blocks}};
      } else if (is_factored(columns[i])) {
        slice.box = {{0}, slice.global_shape};
      }
    }
  }
  // u8 slices go last, so that the others stay aligned in the file.
  std::stable_partition(slices.begin(), slices.end(), [](const Slice& slice) { return slice.dtype != DType::u8; });
  return slices;
}

StateSave make_state_save(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                          const std::filesystem::path& out, const std::optional<TokenizerRecord>& tokenizer,
                          std::vector<Slice> slices, StatePart part) {
  const std::vector<TensorSpec>& tensors = step.spec().tensors;
  int64_t num_tensors = std::ssize(tensors);
  for (const StateColumn& column : step.parameters().columns()) {
    if (part != StatePart::all) break;
    const int64_t of_column = std::count_if(tensors.begin(), tensors.end(),
                                            [&column](const TensorSpec& tensor) { return has_values(column, tensor); });
    num_tensors += of_column * (column.name == outer_momentum_column ? 1 : config.parallel.local_steps.islands);
  }
  const CompressionConfig& compression = config.compression();
  if (const int64_t copies = step.groups().num_data_ranks() / step.design().messages.in_node.size;
      part == StatePart::all && compression.error && copies > 1) {
    const int64_t coded = std::count_if(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
      return codes_gradients(compression, tensor, config.parallel.tensor);
    });
    num_tensors += coded * (copies + (compression.facts().has_factors ? 1 : 0));
  }
  return {.out = out,
          .manifest = {.progress = progress,
                       .seed = config.run.seed,
                       .world_size = step.groups().mesh().world_size(),
                       .config = show_config(config, ConfigText::for_any_ranks),
                       .build = version,
                       .algorithms = step.backend().algorithms(),
                       .loss_scale = step.loss_scale(),
                       .amax_history = part == StatePart::all ? step.amax_history() : std::vector<float>{},
                       .tokenizer = tokenizer},
          .slices = std::move(slices),
          .num_tensors = num_tensors};
}

void write_state(const StateSave& save, Communicator* all, const World& world,
                 const std::function<void()>& before_publish) {
  const int64_t step = save.manifest.progress.step;
  const bool leads = world.rank() == 0;
  agree_on(all, world, [&] {
    if (leads) begin_checkpoint(save.out, step);
  });
  try {
    std::string part;
    agree_on(all, world, [&] { part = write_checkpoint_part(save.out, step, world.rank(), save.slices); });
    std::vector<std::string> parts;  // on rank 0: descriptions of all parts, so that it need not read the files
    pass_texts_to_first(all, part, [&](const std::string& text) { parts.push_back(text); });
    // The manifest is written after every rank has written and synced its part.
    agree_on(all, world, [&] {
      if (!leads) return;
      if (before_publish) before_publish();
      publish_checkpoint(save.out, save.manifest, save.num_tensors, parts);
    });
  } catch (const PeerGone&) {
    throw;
  } catch (...) {
    if (leads) discard_checkpoint(save.out, step);
    throw;
  }
}

}  // namespace gptrain::train
