// A model and its optimizer on a device, and the gradients after a step.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fit/choose_step.h"
#include "model_fixture.h"
#include "train/run_state.h"

namespace gptrain::testing {

inline constexpr int exit_skipped = 77;

using State = std::map<std::string, std::vector<float>>;

// A model and its optimizer on their own device.
class Trainer {
 public:
  Trainer(const RunConfig& config, std::unique_ptr<Backend> backend, int64_t first_sample = 0)
      : config_(config),
        backend_(std::move(backend)),
        rank_(config),
        design_(plan_rank({config, backend_->target()}).design),
        step_(design_, *backend_, rank_.groups),
        batches_(config, first_sample) {
    step_.initialize();
  }

  TrainingStep& step() { return step_; }
  StepResult run() { return step_.run(1e-3, batches_); }

  State state() {
    State state;
    for (const StateSlice& piece : step_.state()) {
      const std::string& name = step_.spec().tensors[static_cast<size_t>(piece.tensor)].name;
      const auto copy = [&](std::string_view kind, const float* data) {
        std::vector<float>& values = state[fmt::format("{}/{}", kind, name)];
        values.resize(static_cast<size_t>(piece.count()));
        backend_->download(values.data(), data, piece.count() * dtype_bytes(DType::f32));
      };
      if (piece.weight != nullptr) {
        copy("weight", piece.weight);
      } else {
        std::vector<bf16> narrow(static_cast<size_t>(piece.count()));
        backend_->download(narrow.data(), piece.narrow_weight, piece.count() * dtype_bytes(DType::bf16));
        for (const bf16 value : narrow) state["weight/" + name].push_back(to_float(value));
      }
      const StateColumns& columns = step_.parameters().columns();
      for (size_t i = 0; i < columns.size(); ++i) copy(columns[i].name, column(piece, i));
    }
    return state;
  }
  void set_weights(const State& state) {
    for (const StateSlice& piece : step_.state()) {
      const std::vector<float>& weight =
          state.at("weight/" + step_.spec().tensors[static_cast<size_t>(piece.tensor)].name);
      backend_->upload(piece.weight, weight.data(), piece.count() * dtype_bytes(DType::f32));
    }
    step_.weights_changed();
  }
  std::string take_warnings() { return backend_->take_warnings(); }
  bool took_what_was_planned() const { return step_.taken() == design_->memory.arenas; }
  void save(const std::filesystem::path& out, int64_t updates = 3) {
    RunConfig config = config_;
    config.run.out = out.string();
    save_state(config, step_, {.step = 3, .updates = updates}, rank_.groups, *rank_.world);
  }
  void load(const std::filesystem::path& out) {
    load_state(resolve_checkpoint(out), step_, rank_.groups, *rank_.world);
  }

 private:
  RunConfig config_;
  std::unique_ptr<Backend> backend_;
  OneRank rank_;
  std::shared_ptr<const StepDesign> design_;
  TrainingStep step_;
  RandomBatches batches_;
};

inline std::unique_ptr<Backend> cuda(int device = 0) {
  if (num_cuda_devices() == 0) {
    std::puts("skipped: there is no CUDA device");
    std::exit(exit_skipped);
  }
  return make_cuda_backend(device % num_cuda_devices());
}

// Uses one thread: ThreadSanitizer does not understand OpenMP's synchronisation.
inline std::unique_ptr<Backend> cpu() { return make_cpu_backend(1); }

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

inline State after_ten_steps(const RunConfig& config) {
  Trainer trainer(config, cpu());
  for (int i = 0; i < 10; ++i) trainer.run();
  return trainer.state();
}

// Runs one step with fresh moments from given weights: exp_avg is (1 - beta1) times the clipped gradient.
inline State first_moments(const RunConfig& config, std::unique_ptr<Backend> backend, const State& start,
                           int64_t first_sample = 1000) {
  Trainer trainer(config, std::move(backend), first_sample);
  trainer.set_weights(start);
  trainer.run();
  return trainer.state();
}

}  // namespace gptrain::testing
