// The process's anonymous resident memory is the plan's plus at most a stated constant.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "fit/choose_step.h"
#include "model_fixture.h"
#include "step/plan_step.h"

namespace {

// Allowance for data of the program and libraries, thread stacks, and oneDNN's generated code and argument packs.
constexpr int64_t constant_bytes = int64_t{48} << 20;

int64_t anonymous_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return -1;
}

}  // namespace

int main() {
  using namespace gptrain;
  if (anonymous_resident_bytes() < 0) {
    std::printf("this system does not tell a process's anonymous resident memory\n");
    return 77;
  }
  int faults = 0;
  for (const char* precision : {"fp32", "bf16"}) {
    const RunConfig config = testing::small_config(
        testing::Family::gpt2,
        {"model.num_layers=6", "model.hidden_size=512", "model.num_heads=8", "model.sequence_length=256",
         std::string("precision.compute=") + precision, "memory.loss_chunk_tokens=2048"});
    const auto backend = make_cpu_backend(2);
    const StepPlan plan = plan_rank({config, backend->target()});
    testing::OneRank rank(config);
    TrainingStep step(plan.design, *backend, rank.groups);
    step.initialize();
    testing::RandomBatches batches(config);
    for (int i = 0; i < 2; ++i) step.run(1e-3, batches);
    const int64_t resident = anonymous_resident_bytes();
    const auto planned = static_cast<double>(plan.memory().arenas.total());
    const bool right = static_cast<double>(resident) <= 1.05 * planned + constant_bytes &&
                       static_cast<double>(resident) >= 0.95 * planned;
    std::printf("%s: planned %.1f MiB, resident %.1f MiB: %s\n", precision, planned / 1048576,
                static_cast<double>(resident) / 1048576, right ? "as planned" : "NOT as planned");
    faults += right ? 0 : 1;
  }
  return faults == 0 ? 0 : 1;
}
