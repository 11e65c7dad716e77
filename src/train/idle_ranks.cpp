#include "train/idle_ranks.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/output.h"
#include "base/thread.h"

namespace gptrain::inline train {
namespace {

// Turns the first signal to this idle process into a request to stop the run, for its own lifetime. The process must
// not exit by itself: its launcher might kill the other processes before they have saved.
class SignalForwarder {
 public:
  SignalForwarder(World& world, const StopSignals& signals)
      : thread_(start_thread("passes signals on", [this, &world, &signals] { watch(world, signals); })) {}
  ~SignalForwarder() {
    over_ = true;
    thread_.join();
  }
  SignalForwarder(const SignalForwarder&) = delete;
  SignalForwarder& operator=(const SignalForwarder&) = delete;

 private:
  void watch(World& world, const StopSignals& signals) const {
    while (!over_ && !signals.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (over_) return;
    print_err("rank {} idles: {} stops the run\n", world.rank(), signals.name());
    world.activity().ask_to_stop();
  }

  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace

IdleRanks::IdleRanks(World& world, int started) : world_(world), is_one_(world.rank() >= world.size()) {
  for (int rank = world.size(); rank < started; ++rank) {
    auto group = world.make_group({0, rank}, {.lane = "idle", .reduces = false, .patient = true});
    if (group) groups_.push_back(std::move(group));
  }
  if (is_one_) world.activity().set_phase("idle");
}

ExitCode IdleRanks::wait(const StopSignals& signals) const {
  const SignalForwarder forwarder(world_, signals);
  int32_t code = 0;
  groups_.front()->receive(&code, 1, DType::i32, 0);
  const auto end = static_cast<ExitCode>(code);
  if (end != ExitCode::finished && end != ExitCode::requeue) throw Error(end, std::string());
  return end;
}

ExitCode IdleRanks::tell(const std::function<ExitCode()>& run) const {
  ExitCode code = ExitCode::finished;
  try {
    code = run();
  } catch (const Error& error) {
    tell_all(error.code());
    throw;
  }
  tell_all(code);
  return code;
}

void IdleRanks::tell_all(ExitCode code) const {
  const auto number = static_cast<int32_t>(code);
  for (const auto& group : groups_) {
    try {
      group->send(&number, 1, DType::i32, 1);
    } catch (const Error&) {
      // The idle process is gone, so nobody waits for the code.
    }
  }
}

}  // namespace gptrain::train
