// The comparison of layouts with one rank finds faults that are easily made and hardly visible in a loss.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "wrappers.h"

namespace test_planted_faults {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

size_t axis_of(const std::string& name) {
  const std::vector<Axis>& axes = layout_axes();
  size_t axis = 0;
  while (axes.at(axis).name != name) ++axis;
  return axis;
}

// Returns the case with the first value of every axis except the named ones.
LayoutCase layout_with(const std::vector<std::pair<std::string, std::string>>& labels) {
  std::vector<size_t> choice(layout_axes().size(), 0);
  for (const auto& [name, label] : labels) {
    const size_t axis = axis_of(name);
    const std::vector<AxisValue>& values = layout_axes()[axis].values;
    while (values.at(choice[axis]).label != label) ++choice[axis];
  }
  return LayoutCase(choice);
}

// Position of a tensor in its unit, and the unit's size, in elements.
struct TensorPosition {
  int64_t first, count, unit_elements;
};

TensorPosition position_of(const LayoutCase& layout, const std::string& tensor) {
  const ModelSpec spec = make_spec(layout.config().model);
  const std::vector<TensorShard> shards = shard_tensors(spec, {layout.tensor_size(), 0});
  const ParameterLayout parameters = make_layout(spec, shards, {layout.data_size()});
  const auto index = spec.numbers().at(tensor);
  const UnitRange& unit = parameters.units[static_cast<size_t>(spec.tensors[index].unit)];
  return {parameters.segments[index].offset - unit.offset, parameters.segments[index].count, unit.elements};
}

// An all-reduce that leaves out one range of buffers of a given size.
class LosesPart final : public ForwardingCommunicator {
 public:
  LosesPart(std::unique_ptr<Communicator> inner, const TensorPosition& position)
      : ForwardingCommunicator(std::move(inner)), position_(position) {}

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    if (dtype != DType::f32 || count != position_.unit_elements)
      return ForwardingCommunicator::all_reduce(data, count, dtype, op);
    float* const part = static_cast<float*>(data) + position_.first;
    const std::vector<float> own(part, part + position_.count);
    ForwardingCommunicator::all_reduce(data, count, dtype, op);
    std::copy(own.begin(), own.end(), part);
  }

 private:
  TensorPosition position_;
};

// Skips all-reduces of f32 buffers of a given size.
class LosesReduction final : public ForwardingCommunicator {
 public:
  LosesReduction(std::unique_ptr<Communicator> inner, int64_t count)
      : ForwardingCommunicator(std::move(inner)), count_(count) {}

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    if (dtype != DType::f32 || count != count_) ForwardingCommunicator::all_reduce(data, count, dtype, op);
  }

 private:
  int64_t count_;
};

// Computes a mean instead of a sum in buffers of a given size.
class Averages final : public ForwardingCommunicator {
 public:
  Averages(std::unique_ptr<Communicator> inner, int64_t count)
      : ForwardingCommunicator(std::move(inner)), count_(count) {}

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    ForwardingCommunicator::all_reduce(data, count, dtype, op);
    if (dtype != DType::f32 || count != count_) return;
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(data)[i] /= static_cast<float>(size());
  }

 private:
  int64_t count_;
};

// AdamW that also decays segments of a given position and size.
class DecaysBias final : public ForwardingBackend {
 public:
  DecaysBias(Backend& inner, const TensorPosition& position) : ForwardingBackend(inner), position_(position) {}

  using ForwardingBackend::run;
  void run(const AdamW& op) override {
    std::vector<AdamW::Segment> segments(op.segments, op.segments + op.num_segments);
    for (AdamW::Segment& segment : segments) {
      if (segment.offset == position_.first && segment.count == position_.count) segment.decay = 1;
    }
    AdamW wrong = op;
    wrong.segments = segments.data();
    inner_.run(wrong);
  }

 private:
  TensorPosition position_;
};

template <typename Fault, typename Argument>
Wrapping in_group(GroupKind faulty, const Argument& argument) {
  Wrapping wrapping;
  wrapping.group = [=](int64_t, LaneKind, GroupKind kind,
                       std::unique_ptr<Communicator> group) -> std::unique_ptr<Communicator> {
    if (kind != faulty) return group;
    return std::make_unique<Fault>(std::move(group), argument);
  };
  return wrapping;
}

}  // namespace

TEST_CASE("a lost reduction of a row-parallel linear's bias is found") {
  const LayoutCase layout = layout_with({{"tensor", "2"}, {"data", "2"}});
  REQUIRE(compare_with_one_rank(layout).small());
  const std::string bias = "blocks.1.attention.out.bias";
  const Difference d = compare_with_one_rank(layout, in_group<LosesPart>(GroupKind::data, position_of(layout, bias)));
  CHECK_FALSE(d.small());
  CHECK(d.first_moment > 0.1);
  CHECK(d.moment_of.ends_with("attention.out.bias"));
  CHECK(d.torn.ends_with("attention.out.bias"));
  // A comparison of losses alone would see only this.
  CHECK(std::abs(d.loss) < 1e-7);
}

TEST_CASE("a lost reduction of what sequence-parallel ranks have of a norm's bias is found") {
  const LayoutCase layout = layout_with({{"tensor", "2"}, {"sequence", "on"}});
  REQUIRE(compare_with_one_rank(layout).small());
  const int64_t hidden = layout.config().model.hidden_size;
  const Difference d = compare_with_one_rank(layout, in_group<LosesReduction>(GroupKind::tensor, hidden));
  CHECK_FALSE(d.small());
  CHECK(d.first_moment > 0.1);
  CHECK(d.moment_of.find("norm") != std::string::npos);
  CHECK(d.torn.find("norm") != std::string::npos);
}

TEST_CASE("a wrongly decayed bias is found") {
  const LayoutCase layout = layout_with({{"data", "2"}});
  REQUIRE(compare_with_one_rank(layout).small());
  const TensorPosition position = position_of(layout, "blocks.1.ffn.out.bias");
  Wrapping wrapping;
  wrapping.backend = [&](int64_t, Backend& backend) { return std::make_unique<DecaysBias>(backend, position); };
  const Difference d = compare_with_one_rank(layout, wrapping);
  CHECK_FALSE(d.small());
  CHECK(d.weight_of.ends_with("ffn.out.bias"));
  CHECK(d.first_moment < 2e-5);  // moments do not show it: weights are compared for this
}

TEST_CASE("a gradient averaged twice is found") {
  const LayoutCase layout = layout_with({{"data", "2"}});
  REQUIRE(compare_with_one_rank(layout).small());
  const int64_t of_block = position_of(layout, "blocks.1.norm1.weight").unit_elements;
  const Difference d = compare_with_one_rank(layout, in_group<Averages>(GroupKind::data, of_block));
  CHECK_FALSE(d.small());
  CHECK(d.first_moment > 0.1);
  CHECK(std::abs(d.norm) > 0.01);
}

}  // namespace test_planted_faults
