#include "train/together.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/output.h"
#include "comm/process_world.h"

namespace gptrain {

void let_rank_0_speak() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

void refuse_together(const Launch& launch, const Error& error) {
  if (launch.size == 1) throw error;
  // Others start within seconds of this process; those that come later find nobody, and say themselves what is wrong.
  constexpr double seconds_to_meet = 10;
  const std::string message = error.what();
  if (launch.rank == 0) print_err("gptrain: {}\n", message);
  try {
    const std::string fact = "refused: " + message.substr(0, message.find('\n'));
    const Timeout timeout{.seconds = seconds_to_meet, .set_by = ""};
    const Refusal refusal{error.code(), launch.rank == 0 ? "" : message};
    const auto world =
        make_process_world(launch, {.facts = {{config_fact_name, fact}}, .timeout = timeout, .refusal = refusal});
  } catch (const Error& meeting) {
    if (launch.rank == 0) throw Error(error.code(), std::string(meeting.what()));
    if (*meeting.what() != '\0') throw Error(error.code(), "{}\n{}", message, meeting.what());
    let_rank_0_speak();
    throw;
  }
  if (launch.rank > 0) let_rank_0_speak();
  throw Error(error.code(), std::string());
}

}  // namespace gptrain
