// The host a step ahead of the device, on the host harness, whose queues run late, early, or in between.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/event.h"
#include "catch.h"
#include "differences.h"
#include "fit/choose_step.h"
#include "host/device_queues.h"
#include "model_fixture.h"
#include "ops/timed_backend.h"
#include "parallel/offload_lanes.h"
#include "parallel/wrappers.h"
#include "step/arena_fill.h"
#include "step/state_snapshot.h"
#include "train/run_state.h"

namespace test_asynchrony {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Keeps the last `kept` micro-batches and overwrites older ones at once, as a reader that reads ahead may.
class KeptBatches final : public MicroBatchSource {
 public:
  KeptBatches(const RunConfig& config, int64_t kept)
      : source_(config), bytes_(micro_batch_shape(config).bytes()), config_(config) {
    for (int64_t i = 0; i < kept; ++i) memory_.emplace_back(static_cast<size_t>(bytes_));
  }
  int64_t num_valid() const override { return static_cast<int64_t>(memory_.size()); }
  const MicroBatch& next() override {
    std::vector<std::byte>& oldest = memory_[static_cast<size_t>(taken_++ % num_valid())];
    std::fill(oldest.begin(), oldest.end(), std::byte{1});
    const MicroBatch& made = source_.next();
    view_ = MicroBatch::at(oldest.data(), micro_batch_shape(config_));
    std::memcpy(oldest.data(), made.tokens, static_cast<size_t>(bytes_));
    return view_;
  }

 private:
  RandomBatches source_;
  const int64_t bytes_;
  const RunConfig config_;
  std::vector<std::vector<std::byte>> memory_;
  int64_t taken_ = 0;
  MicroBatch view_;
};

// A side queue that omits one kind of call.
enum class Forgotten { nothing, follow_ops, ops_follow, await_work, await_ops };

class ForgetfulQueue final : public SideQueue {
 public:
  ForgetfulQueue(std::unique_ptr<SideQueue> inner, Forgotten forgotten)
      : inner_(std::move(inner)), forgotten_(forgotten) {}

  void mark_ops(int mark) override { inner_->mark_ops(mark); }
  void follow_ops(int mark) override {
    if (forgotten_ != Forgotten::follow_ops) inner_->follow_ops(mark);
  }
  void mark_work(int mark) override { inner_->mark_work(mark); }
  void ops_follow(int mark) override {
    if (forgotten_ != Forgotten::ops_follow) inner_->ops_follow(mark);
  }
  void await_ops(int mark) override {
    if (forgotten_ != Forgotten::await_ops) inner_->await_ops(mark);
  }
  void await_work(int mark) override {
    if (forgotten_ != Forgotten::await_work) inner_->await_work(mark);
  }
  void finish_work(int mark) override {
    if (forgotten_ != Forgotten::await_work) inner_->finish_work(mark);
  }
  void time_ops(int time) override { inner_->time_ops(time); }
  double seconds_between(int from, int to) override { return inner_->seconds_between(from, to); }
  void* handle() const override { return inner_->handle(); }
  void upload(void* device, const void* host, int64_t bytes) override { inner_->upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override { inner_->download(host, device, bytes); }
  void queue_upload(void* device, const void* host, int64_t bytes) override {
    inner_->queue_upload(device, host, bytes);
  }
  void queue_download(void* host, const void* device, int64_t bytes) override {
    inner_->queue_download(host, device, bytes);
  }
  void copy_among_ops(void* to, const void* from, int64_t bytes) override { inner_->copy_among_ops(to, from, bytes); }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override { return inner_->allocate_host(bytes); }
  void while_waiting(std::function<void()> check) override { inner_->while_waiting(std::move(check)); }

 private:
  const std::unique_ptr<SideQueue> inner_;
  const Forgotten forgotten_;
};

constexpr int all_queues = -1;

class ForgetfulBackend final : public ForwardingBackend {
 public:
  // `queue`: number of the side queue that omits calls; negative: all of them.
  ForgetfulBackend(Backend& inner, Forgotten forgotten, int queue)
      : ForwardingBackend(inner), forgotten_(forgotten), queue_(queue) {}
  std::unique_ptr<SideQueue> make_side_queue() override {
    const bool forgets = queue_ == all_queues || queue_ == made_++;
    return std::make_unique<ForgetfulQueue>(inner_.make_side_queue(), forgets ? forgotten_ : Forgotten::nothing);
  }

 private:
  const Forgotten forgotten_;
  const int queue_;
  int made_ = 0;
};

bool same(const std::vector<StepResult>& a, const std::vector<StepResult>& b) {
  // NaN counts as equal to itself.
  const auto same_bits = [](double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); };
  return std::ranges::equal(a, b, [&](const StepResult& x, const StepResult& y) {
    return same_bits(x.loss, y.loss) && same_bits(x.grad_norm, y.grad_norm) && x.skipped == y.skipped &&
           x.updates == y.updates;
  });
}

// Destroyed before the sources that it reads, as its last copies may end with it.
class Trainer {
 public:
  explicit Trainer(const RunConfig& config, Forgotten forgotten = Forgotten::nothing, int queue = all_queues)
      : config_(config),
        device_(make_cuda_backend(0)),
        backend_(*device_, forgotten, queue),
        rank_(config),
        step_(plan_rank({config, backend_.target()}).design, backend_, rank_.groups) {
    step_.initialize();
  }

  TrainingStep& step() { return step_; }

  // Ends each step before the next begins.
  std::vector<StepResult> one_by_one(MicroBatchSource& source, const std::vector<double>& rates) {
    std::vector<StepResult> results;
    for (const double rate : rates) results.push_back(step_.run(rate, source));
    return results;
  }
  // Begins each step before the previous one has ended. Nothing waits for the device meanwhile.
  std::vector<StepResult> ahead(MicroBatchSource& source, const std::vector<double>& rates) {
    std::vector<StepResult> results;
    for (const double rate : rates) {
      const int64_t waits = simt::host_waits();
      step_.begin(rate, source);
      waits_in_steps += simt::host_waits() - waits;
      if (step_.begun() > step_.most_ahead()) results.push_back(step_.end());
    }
    while (step_.begun() > 0) results.push_back(step_.end());
    return results;
  }
  std::vector<float> weights() {
    std::vector<float> weights;
    for (const StateSlice& piece : step_.state()) {
      const size_t before = weights.size();
      weights.resize(before + static_cast<size_t>(piece.count()));
      backend_.download(weights.data() + before, piece.weight, piece.count() * dtype_bytes(DType::f32));
    }
    return weights;
  }
  void save(const std::filesystem::path& out) {
    config_.run.out = out.string();
    save_state(config_, step_, {.step = 1, .updates = 0}, rank_.groups, *rank_.world);
  }

  int64_t waits_in_steps = 0;

 private:
  RunConfig config_;
  std::unique_ptr<Backend> device_;
  ForgetfulBackend backend_;
  OneRank rank_;
  TrainingStep step_;
};

RunConfig two_micro_batches() {
  return small_config(Family::gpt2, {"batch.micro=2", "model.dropout=0.1", "model.num_layers=1"});
}
constexpr int64_t all_kept = 4;  // micro-batches of two steps

}  // namespace

TEST_CASE("a step that begins before the last one is over waits for nothing and has the same bits") {
  const RunConfig config = two_micro_batches();
  const std::vector<double> rates(5, 1e-3);
  KeptBatches all(config, all_kept), again(config, all_kept);
  Trainer expected(config), trainer(config);
  const auto results = expected.one_by_one(all, rates);
  CHECK(trainer.step().most_ahead() == 1);
  CHECK(same(trainer.ahead(again, rates), results));
  CHECK(trainer.waits_in_steps == 0);
  CHECK(first_difference(trainer.weights(), expected.weights()) == "");
  CHECK(results.back().updates == 5);
}

TEST_CASE("the time of a step is that between the ends of two, whenever the host looks") {
  const RunConfig config = two_micro_batches();
  KeptBatches batches(config, all_kept);
  Trainer trainer(config);
  const double start = steady_seconds();
  std::vector<double> seconds;
  for (const StepResult& result : trainer.ahead(batches, std::vector<double>(6, 1e-3)))
    seconds.push_back(result.seconds);
  const double whole = steady_seconds() - start;
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  CHECK(sum <= whole);
  CHECK(sum > 0.5 * whole);
  // The last two are read in direct succession.
  std::sort(seconds.begin(), seconds.end());
  CHECK(seconds.front() > 0.1 * seconds[3]);
}

TEST_CASE("a source that keeps one micro-batch is waited for and read whole") {
  const RunConfig config = two_micro_batches();
  const std::vector<double> rates(3, 1e-3);
  KeptBatches all(config, all_kept), again(config, 1);
  Trainer expected(config), trainer(config);
  CHECK(same(expected.one_by_one(all, rates), trainer.ahead(again, rates)));
  CHECK(trainer.waits_in_steps > 0);
}

TEST_CASE("each wait between copies and ops is needed", "[long]") {
  const RunConfig config = two_micro_batches();
  const std::vector<double> rates(6, 1e-3);
  const auto results = [&](Forgotten forgotten) {
    // Must outlive the trainer, whose copies may not have been waited for.
    KeptBatches batches(config, forgotten == Forgotten::await_work ? 1 : all_kept);
    Trainer trainer(config, forgotten);
    return trainer.ahead(batches, rates);
  };
  const auto expected = results(Forgotten::nothing);
  for (const Forgotten forgotten : {Forgotten::follow_ops, Forgotten::ops_follow, Forgotten::await_work}) {
    INFO(static_cast<int>(forgotten));
    CHECK_FALSE(same(results(forgotten), expected));
  }
  // Asks for the step's time before anything waits for the results.
  CHECK_THROWS_AS(results(Forgotten::await_ops), std::logic_error);
}

TEST_CASE("offloaded activations have the bits of those on the device, and each wait of its copies is needed") {
  RunConfig config = small_config(Family::gpt2, {"batch.micro=2", "model.num_layers=4", "model.hidden_size=24"});
  const std::vector<double> rates(3, 1e-3);
  std::vector<int64_t> activations, on_host;
  const auto results = [&](OffloadChoice offloaded, Forgotten forgotten, int queue) {
    config.memory.offload = offloaded;
    KeptBatches batches(config, all_kept);
    Trainer trainer(config, forgotten, queue);
    const MemoryPlan& memory = trainer.step().design().memory.arenas;
    CHECK(trainer.step().taken() == memory);
    activations.push_back(memory[MemoryClass::activations]);
    on_host.push_back(memory.on(MemoryPlace::pinned_host)[static_cast<size_t>(MemoryClass::offloaded)]);
    return trainer.ahead(batches, rates);
  };
  const auto expected = results(offload::none, Forgotten::nothing, 0);
  for (const OffloadChoice offloaded : {OffloadChoice::of_blocks(2), offload::all})
    CHECK(same(results(offloaded, Forgotten::nothing, 0), expected));
  CHECK(activations[0] > activations[1]);
  CHECK(activations[1] > activations[2]);
  CHECK(on_host[0] == 0);
  CHECK(2 * on_host[1] == on_host[2]);
  for (const int lane : {1, 2}) {  // to the host, and back
    for (const Forgotten forgotten : {Forgotten::follow_ops, Forgotten::ops_follow}) {
      INFO(lane << " " << static_cast<int>(forgotten));
      CHECK_FALSE(same(results(offload::all, forgotten, lane), expected));
    }
  }
}

TEST_CASE("steps that are skipped are found so one step later") {
  const RunConfig config = two_micro_batches();
  // The fourth update makes the weights so large that all later losses are NaN.
  const std::vector<double> rates = {1e-3, 1e-3, 0, 1e30, 1e-3, 1e-3, 1e-3};
  KeptBatches all(config, all_kept), again(config, all_kept);
  Trainer expected(config), trainer(config);
  const auto results = trainer.ahead(again, rates);
  CHECK(same(results, expected.one_by_one(all, rates)));
  for (size_t i = 0; i < results.size(); ++i) {
    CHECK(results[i].skipped == (i > 3));
    CHECK(results[i].updates == std::min<int64_t>(static_cast<int64_t>(i) + 1, 4));
  }
}

TEST_CASE("no more than two steps begin before the first is read") {
  const RunConfig config = two_micro_batches();
  KeptBatches batches(config, all_kept);
  Trainer trainer(config);
  CHECK_THROWS_AS(trainer.step().end(), std::logic_error);
  for (int i = 0; i < 2; ++i) trainer.step().begin(1e-3, batches);
  CHECK_THROWS_AS(trainer.step().begin(1e-3, batches), std::logic_error);
}

TEST_CASE("what is no op is refused amid a capture, and the backend goes on") {
  const auto backend = make_cuda_backend(0);
  const auto queue = backend->make_side_queue();
  const auto memory = backend->allocate(256);
  float value = 0;
  const std::vector<std::function<void()>> calls = {
      [&] { backend->synchronize(); },
      [&] { backend->allocate(256); },
      [&] { backend->upload(memory->data(), &value, sizeof value); },
      [&] { backend->download(&value, memory->data(), sizeof value); },
      [&] { backend->run_recorded(RecordingKey(0), [] {}), backend->run_recorded(RecordingKey(0), [] {}); },
      [&] { queue->mark_ops(0); },
      [&] { queue->ops_follow(0); },
      [&] { queue->await_ops(0); },
      [&] { queue->await_work(0); },
      [&] { queue->time_ops(0); },
      [&] { queue->copy_among_ops(memory->data(), memory->data() + 128, 4); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    INFO("call " << i);
    const RecordingKey key(i + 1);
    backend->run_recorded(key, [] {});
    CHECK_THROWS_AS(backend->run_recorded(key, calls[i]), std::logic_error);
    CHECK_NOTHROW(calls[i]());
    CHECK_NOTHROW(backend->run_recorded(key, [] {}));
  }
}

TEST_CASE("checkpoints come from the device piece by piece, whole") {
  // The embedding has more than two pieces.
  const RunConfig config = small_config(Family::gpt2, {"model.vocab_size=60001"});
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gptrain-pieces-" + std::to_string(getpid()));
  const auto saved_weights = [&](Forgotten forgotten) {
    Trainer trainer(config, forgotten);
    trainer.save(folder);
    const auto cpu = make_cpu_backend(1);
    OneRank rank(config);
    TrainingStep step(plan_rank({config, cpu->target()}).design, *cpu, rank.groups);
    load_state(resolve_checkpoint(folder), step, rank.groups, *rank.world);
    std::vector<float> weights;
    for (const StateSlice& piece : step.state())
      weights.insert(weights.end(), piece.weight, piece.weight + piece.count());
    return std::pair(weights, trainer.weights());
  };
  const auto [saved, held] = saved_weights(Forgotten::nothing);
  CHECK((saved == held));  // not printed: too many values
  const auto [wrong, right] = saved_weights(Forgotten::await_work);
  CHECK_FALSE((wrong == right));
  std::filesystem::remove_all(folder);
}

TEST_CASE("the copy of the state lies in memory of the host that is planned, and is waited for") {
  const RunConfig config =
      small_config(Family::gpt2, {"batch.micro=2", "model.vocab_size=60001", "checkpoint.every_steps=2"});
  KeptBatches batches(config, all_kept);
  const auto copied_weights = [&](Trainer& trainer) {
    std::vector<float> weights;
    for (const StateSlice& piece : trainer.step().copy_state())
      weights.insert(weights.end(), piece.weight, piece.weight + piece.count());
    return weights;
  };
  const auto host = [](const MemoryPlan& memory) {
    return memory.on(MemoryPlace::pinned_host)[static_cast<size_t>(MemoryClass::snapshot)];
  };
  Trainer trainer(config), hasty(config, Forgotten::await_work);
  for (Trainer* each : {&trainer, &hasty}) {
    each->step().take_snapshot_memory();
    CHECK(host(each->step().taken()) == each->step().design().snapshot_bytes);
    CHECK(host(each->step().design().memory.arenas) == each->step().design().snapshot_bytes);
    CHECK(each->step().taken()[MemoryClass::snapshot] == 0);
    each->one_by_one(batches, {1e-3});
  }
  CHECK(first_difference(copied_weights(trainer), trainer.weights()) == "");
  CHECK(first_difference(copied_weights(hasty), hasty.weights()) != "");
}

TEST_CASE("what cannot be pinned is refused with its size and the key that asks for it") {
  const auto backend = make_cuda_backend(0);
  const int64_t bytes = int64_t{1} << 50;
  const auto refusal = [](const std::function<void()>& take) -> std::string {
    try {
      take();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal([&] { OffloadLanes(*backend).allocate(bytes); }) ==
        "memory.offload_activations: cannot pin 1.0 PiB of the host's memory");
  CHECK(refusal([&] { StateSnapshot(*backend, bytes); }) ==
        "checkpoint.asynchronous: cannot pin 1.0 PiB of the host's memory");
}

namespace {

// Counts uploads, and checks all memory when algorithms are to be chosen.
class ChoosingBackend final : public ForwardingBackend {
 public:
  static constexpr size_t looked_at = 4096;

  using ForwardingBackend::ForwardingBackend;
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    auto memory = inner_.allocate(bytes);
    if (memory->bytes() >= static_cast<int64_t>(looked_at)) memory_.push_back(memory->data());
    return memory;
  }
  void upload(void* device, const void* host, int64_t bytes) override {
    uploaded += bytes;
    inner_.upload(device, host, bytes);
  }
  std::string algorithms() const override { return has_choice ? inner_.algorithms() : ""; }
  void set_choosing(bool choosing) override {
    for (const std::byte* memory : memory_) {
      if (!choosing) continue;
      found.emplace_back(looked_at);
      inner_.download(found.back().data(), memory, looked_at);
    }
    inner_.set_choosing(choosing);
  }

  bool has_choice = true;
  int64_t uploaded = 0;
  std::vector<std::vector<std::byte>> found;

 private:
  std::vector<const std::byte*> memory_;
};

bool is_filled(const std::vector<std::byte>& memory) {
  return std::ranges::all_of(memory, [i = 0](std::byte byte) mutable {
    return (byte & std::byte{0x40}) == std::byte{0} && (i++ % 2 == 0 || (byte & std::byte{0x3f}) == std::byte{0x3f});
  });
}

}  // namespace

TEST_CASE("algorithms are chosen on other numbers in each arena, and nothing is filled where there is no choice") {
  const RunConfig config = small_config(Family::gpt2, {"batch.micro=2"});
  const auto device = make_cuda_backend(0);
  ChoosingBackend backend(*device);
  OneRank rank(config);
  TrainingStep step(plan_rank({config, backend.target()}).design, backend, rank.groups);
  backend.uploaded = 0;
  backend.has_choice = false;
  step.choose_algorithms();
  CHECK(backend.uploaded == 0);
  CHECK(backend.found.empty());
  backend.has_choice = true;
  step.choose_algorithms();
  std::vector<std::vector<std::byte>> filled;
  std::ranges::copy_if(backend.found, std::back_inserter(filled), is_filled);
  CHECK(filled.size() >= 3);  // weights, activations, workspace
  std::ranges::sort(filled);
  CHECK(std::ranges::adjacent_find(filled) == filled.end());
}

TEST_CASE("memory is filled by one upload and the device's own copies") {
  const auto device = make_cuda_backend(0);
  ChoosingBackend backend(*device);
  const auto copies = backend.make_side_queue();
  const std::vector<std::byte> pattern = numbers_for_products(1, 1002);
  constexpr int64_t bytes = 50'003, guard = 16;
  const auto memory = backend.allocate(bytes + guard);
  zero_memory(backend, copies.get(), memory->data(), memory->bytes());
  backend.uploaded = 0;
  fill_memory(backend, copies.get(), memory->data(), bytes, pattern);
  CHECK(backend.uploaded == std::ssize(pattern));
  std::vector<std::byte> found(bytes + guard);
  backend.download(found.data(), memory->data(), std::ssize(found));
  for (size_t i = 0; i < found.size(); ++i)
    REQUIRE(found[i] == (i < bytes ? pattern[i % pattern.size()] : std::byte{0}));
  backend.uploaded = 0;
  const auto large = backend.allocate(int64_t{40} << 20);
  zero_memory(backend, copies.get(), large->data(), large->bytes());
  CHECK(backend.uploaded <= int64_t{4} << 20);
  found.resize(static_cast<size_t>(large->bytes()));
  backend.download(found.data(), large->data(), large->bytes());
  CHECK(std::ranges::count(found, std::byte{0}) == large->bytes());
}

namespace {

// Makes the host slow to notice that a device is ready.
class SlowToWait final : public ForwardingBackend {
 public:
  static constexpr auto delay = std::chrono::milliseconds(20);

  using ForwardingBackend::ForwardingBackend;
  void synchronize() override {
    ForwardingBackend::synchronize();
    std::this_thread::sleep_for(delay);
  }
};

}  // namespace

TEST_CASE("a profiled op's time is the device's, without what the host takes to wait for it") {
  const auto device = make_cuda_backend(0);
  SlowToWait slow(*device);
  EventLog log;
  TimedBackend backend(slow, log);
  const auto memory = backend.allocate(4096);
  zero_memory(backend, nullptr, memory->data(), memory->bytes());
  log.start();
  backend.run(Cast{.from = Matrix(memory->data(), DType::f32, 1, 256),
                   .to = Matrix(memory->data() + 2048, DType::bf16, 1, 256)});
  log.stop();
  const std::vector<Event> events = log.take(log.end());
  REQUIRE(events.size() == 1);
  const double seconds = events[0].end_seconds - events[0].start_seconds;
  CHECK(seconds > 0);
  CHECK(seconds < std::chrono::duration<double>(SlowToWait::delay).count());
}

}  // namespace test_asynchrony
