// Offsets of buffers by lifetime: sound, and close to the least possible memory.
#include <algorithm>
#include <random>
#include <vector>

#include "catch.h"
#include "schedule/allocator.h"
#include "schedule/schedule.h"
#include "schedule_fixture.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

std::vector<Lifetime> lifetimes_of(const Schedule& schedule, int64_t saved_for_input, int64_t saved_for_weight,
                                   int64_t gradients) {
  std::vector<Lifetime> lifetimes;
  for (const Buffer& buffer : schedule.buffers) {
    int64_t units = 0;
    if (buffer.kind == BufferKind::stream || buffer.kind == BufferKind::stream_gradient) units = 2;
    if (buffer.kind == BufferKind::saved_for_input) units = saved_for_input;
    if (buffer.kind == BufferKind::saved_for_weight) units = saved_for_weight;
    if (buffer.kind == BufferKind::gradients) units = gradients;
    lifetimes.push_back({buffer.first, buffer.last, units * 256});
  }
  return lifetimes;
}

}  // namespace

TEST_CASE("random lifetimes are placed apart, and near the least") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int32_t actions = 2 + static_cast<int32_t>(random() % 60);
    std::vector<Lifetime> lifetimes;
    for (size_t i = 0; i < 1 + random() % 120; ++i) {
      const auto first = static_cast<int32_t>(random() % static_cast<uint32_t>(actions));
      const auto length = static_cast<int32_t>(random() % static_cast<uint32_t>(actions - first));
      lifetimes.push_back({first, first + length, 256 * static_cast<int64_t>(random() % 9)});
    }
    lifetimes.push_back({-1, -1, 256});  // named by no action
    const Placement placement = place_buffers(lifetimes);
    REQUIRE(check(placement, lifetimes) == "");
    const int64_t least = most_alive_bytes(lifetimes);
    CHECK(placement.bytes >= least);
    CHECK(placement.bytes <= 2 * least);
  }
}

TEST_CASE("a step's buffers take no more than what is alive at once, and every micro-batch the same places") {
  for (const bool recompute : {false, true}) {
    for (const bool joint : {false, true}) {
      for (const size_t layers : {1, 2, 12, 40}) {
        std::vector<bool> recomputed(layers + 2, false);
        for (size_t i = 1; recompute && i <= layers; ++i) recomputed[i] = true;
        const Schedule schedule =
            training_schedule({.micro_batches = 3, .units = units_of(recomputed), .joint_backward = joint});
        const std::vector<Lifetime> lifetimes = lifetimes_of(schedule, 9, 5, 7);
        const Placement placement = place_buffers(lifetimes);
        INFO(layers << (recompute ? " recomputed" : "") << (joint ? " joint" : ""));
        REQUIRE(check(placement, lifetimes) == "");
        CHECK(placement.bytes == most_alive_bytes(lifetimes));
        const size_t per_micro_batch = schedule.buffers.size() / 3;
        for (size_t i = 0; i < per_micro_batch; ++i)
          CHECK(placement.offsets[i] == placement.offsets[i + per_micro_batch]);
      }
    }
  }
}

TEST_CASE("a placement in which two buffers share memory is found") {
  const std::vector<Lifetime> lifetimes = {{0, 3, 512}, {2, 4, 256}, {4, 5, 256}};
  CHECK(check({{0, 512, 0}, 768}, lifetimes) == "");
  CHECK(check({{0, 256, 0}, 768}, lifetimes) == "buffers 0 and 1 share memory in action 2");
  CHECK(check({{0, 512, 512}, 768}, lifetimes) == "buffers 1 and 2 share memory in action 4");
  CHECK(check({{0, 512, 768}, 768}, lifetimes) == "buffer 2 ends at byte 1024 of 768");
}
