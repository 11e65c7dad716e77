// The CPU backend: checks each op and runs it at once, on the calling thread and an OpenMP team.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/linear.h"
#include "ops/side_queue.h"

namespace gptrain::inline ops {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int num_threads, bool thread_independent);

  const Target& target() const override { return target_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override;
  void set_scratch(std::byte* data, int64_t bytes) override;
  void upload(void* device, const void* host, int64_t bytes) override;
  void download(void* host, const void* device, int64_t bytes) override;
  void synchronize() override {}  // every op has run when its call returns
  std::unique_ptr<PackedLinear> pack(const LinearForward& op, const Allocate& allocate) override;
  std::unique_ptr<SideQueue> make_side_queue() override { return nullptr; }

#define GPTRAIN_DECLARE_CPU_RUN(Op) void run(const Op& op) override;
  GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CPU_RUN)
#undef GPTRAIN_DECLARE_CPU_RUN

 private:
  void require_libraries(int64_t bytes) const;
  template <typename Op>
  void prepare(const Op& op) const;

  Target target_;
  CpuContext context_;
  RotaryTables rotary_tables_;
  CpuLinear linear_;
};

}  // namespace gptrain::ops
