// Memory as planned: bytes touched, and no allocation in a step.
#include <cstring>
#include <memory>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "train/plan_step.h"

namespace test_memory {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

constexpr unsigned char poison = 0xA5;

// Runs on another backend; memory comes poisoned and is remembered.
class PoisoningBackend : public Backend {
 public:
  explicit PoisoningBackend(Backend& inner) : inner_(inner) {}

  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    auto memory = inner_.allocate(bytes);
    if (memory->bytes() > 0) std::memset(memory->data(), poison, static_cast<size_t>(memory->bytes()));
    arenas.push_back(memory.get());
    return memory;
  }
  const Target& target() const override { return inner_.target(); }
  void set_scratch(std::byte* data, int64_t bytes) override { inner_.set_scratch(data, bytes); }
  void upload(void* device, const void* host, int64_t bytes) override { inner_.upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override { inner_.download(host, device, bytes); }
  void synchronize() override { inner_.synchronize(); }
  std::unique_ptr<SideQueue> make_side_queue() override { return inner_.make_side_queue(); }
#define GPTRAIN_FORWARD(Op) \
  void run(const Op& op) override { inner_.run(op); }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_FORWARD)
#undef GPTRAIN_FORWARD

  std::vector<DeviceMemory*> arenas;

 private:
  Backend& inner_;
};

// Bytes up to the last one that was written, rounded up to the alignment of arenas' contents.
int64_t touched_bytes(const DeviceMemory& memory) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
  int64_t last = memory.bytes();
  while (last > 0 && bytes[last - 1] == poison) --last;
  return align_up(last);
}

}  // namespace

TEST_CASE("the bytes that a run touches in each arena are the plan's") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const std::vector<std::string>& overrides :
         {std::vector<std::string>{},
          {"batch.micro=1"},
          {"memory.recompute=block"},
          {"memory.recompute=selective", "precision.compute=bf16"},
          {"model.dropout=0.1", "precision.compute=bf16"},
          {"precision.compute=bf16-pure"},
          {"model.hidden_size=48", "model.ffn_hidden_size=112", "model.sequence_length=20", "run.device=auto",
           "precision.compute=bf16", "precision.linears=fp8"},
          {"model.hidden_size=48", "model.ffn_hidden_size=112", "model.sequence_length=20", "run.device=auto",
           "precision.compute=bf16-pure", "precision.weight_gradients=fp8"},
          {"precision.compute=bf16", "precision.residual=fp32", "memory.recompute=every_nth",
           "memory.recompute_interval=2"}}) {
      const RunConfig config = small_config(family, overrides);
      const auto cpu = make_cpu_backend(2);
      PoisoningBackend backend(*cpu);
      const StepPlan plan = plan_step(config, backend.target());
      testing::OneRank rank(config);
      TrainingStep step(plan.design, backend, rank.groups);
      step.initialize();
      RandomBatches batches(config);
      step.run(1e-3, batches);
      step.run(1e-3, batches);
      REQUIRE(backend.arenas.size() == num_memory_classes);
      for (size_t c = 0; c < num_memory_classes; ++c) {
        INFO(memory_class_names[c] << " " << (overrides.empty() ? "" : overrides.back()));
        int64_t planned = plan.memory().arenas[static_cast<MemoryClass>(c)];
        if (c == static_cast<size_t>(MemoryClass::data)) planned -= all_rings_bytes(config, backend.target());
        // Nothing writes the gradients' padding after the last tensor, which is up to one segment multiple.
        const int64_t untouched = planned - touched_bytes(*backend.arenas[c]);
        CHECK(untouched >= 0);
        CHECK(untouched <
              (c == static_cast<size_t>(MemoryClass::gradients) ? segment_multiple * dtype_bytes(DType::f32) : 1));
      }
    }
  }
}

}  // namespace test_memory
