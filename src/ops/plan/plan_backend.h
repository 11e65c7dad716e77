// The `plan` backend: runs a step without memory or arithmetic and writes down what it would have taken.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/int128.h"
#include "ops/backend.h"
#include "ops/footprint.h"
#include "ops/side_queue.h"

namespace gptrain {

// Position of an op in GPTRAIN_FOR_EACH_OP.
enum class OpIndex : uint8_t {
#define GPTRAIN_OP_INDEX(Op) Op,
  GPTRAIN_FOR_EACH_OP(GPTRAIN_OP_INDEX)
#undef GPTRAIN_OP_INDEX
      count
};
constexpr size_t num_ops = static_cast<size_t>(OpIndex::count);

// Names of all ops, by index.
constexpr std::array<std::string_view, num_ops> op_names = {
#define GPTRAIN_OP_NAME(Op) Op::name,
    GPTRAIN_FOR_EACH_OP(GPTRAIN_OP_NAME)
#undef GPTRAIN_OP_NAME
};

// Calls of one op, added up.
struct OpTotals {
  int64_t calls = 0;
  Flops model_flops = 0;
  Flops executed_flops = 0;
  Flops bytes_moved = 0;

  OpTotals& operator+=(const OpTotals& other);
};
using OpTable = std::array<OpTotals, num_ops>;

// Addresses handed out by `allocate` are distinct and never touched. Copies and `synchronize` do nothing.
class PlanBackend : public Backend {
 public:
  explicit PlanBackend(Target target) : target_(std::move(target)) {}

  const Target& target() const override { return target_; }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override;
  void set_scratch(std::byte*, int64_t) override {}
  void upload(void*, const void*, int64_t) override {}
  void download(void*, const void*, int64_t) override {}
  void synchronize() override {}
  std::unique_ptr<SideQueue> make_side_queue() override { return nullptr; }
  // Those of the target's own backend that follow from shapes alone.
  std::string take_warnings() override;

#define GPTRAIN_PLAN_RUN(Op)                   \
  void run(const Op& op) override {            \
    note(OpIndex::Op, footprint(op, target_)); \
    look_for_warnings(op);                     \
  }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_PLAN_RUN)
#undef GPTRAIN_PLAN_RUN

  const OpTable& ops() const { return ops_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }  // the most any op asked for

  OpTable since(const OpTable& before) const;  // what was written down after `before`, a copy of ops()
  void add(const OpTable& ops, int64_t times);  // counts ops as if they had run so often
  // While true, ops count as executed but not as part of the model.
  void set_recomputing(bool recomputing) { recomputing_ = recomputing; }

 private:
  void note(OpIndex index, const Footprint& footprint);
  template <typename Op>
  void look_for_warnings(const Op&) {}
  void look_for_warnings(const AttentionForward& op) { look_for_unserved_documents(op); }
  void look_for_warnings(const AttentionBackward& op) { look_for_unserved_documents(op); }
  template <typename Op>
  void look_for_unserved_documents(const Op& op);

  Target target_;
  OpTable ops_{};
  int64_t scratch_bytes_ = 0;
  bool recomputing_ = false;
  std::set<std::string> warnings_;
  uintptr_t next_address_ = uintptr_t{1} << 46;
};

}  // namespace gptrain
