#include "train/idle_ranks.h"

namespace gptrain {

IdleRanks::IdleRanks(World& world, int started) : is_one_(world.rank() >= world.size()) {
  for (int rank = world.size(); rank < started; ++rank) {
    auto group = world.make_group({0, rank}, {.lane = "idle", .reduces = false, .patient = true});
    if (group) groups_.push_back(std::move(group));
  }
  if (is_one_) world.activity().set_phase("idle");
}

ExitCode IdleRanks::wait() const {
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
      // It is gone, and waits for nothing.
    }
  }
}

}  // namespace gptrain
