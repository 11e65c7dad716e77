#include "train/refuse_on_all_ranks.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/output.h"
#include "comm/process_world.h"

namespace gptrain::inline train {

void wait_for_rank_0_message() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

void refuse_on_all_ranks(const Launch& launch, const Error& error) {
  if (launch.size == 1) throw error;
  // The other ranks start within seconds. A rank that comes later finds nobody, and prints its error itself.
  constexpr double seconds_to_meet = 10;
  const std::string message = error.what();
  if (launch.rank == 0) print_err("gptrain: {}\n", error.lines());
  try {
    const std::string fact = "refused: " + message.substr(0, message.find('\n'));
    const Timeout timeout{.seconds = seconds_to_meet, .set_by = ""};
    const Refusal refusal{error.code(), launch.rank == 0 ? Lines() : error.lines()};
    const auto world =
        make_process_world(launch, {.facts = {{config_fact_name, fact}}, .timeout = timeout, .refusal = refusal});
  } catch (const Error& meeting) {
    if (launch.rank == 0) throw Error(error.code(), meeting.lines());
    if (*meeting.what() != '\0') throw Error(error.code(), "{}\n{}", error.lines(), meeting.lines());
    wait_for_rank_0_message();
    throw;
  }
  if (launch.rank > 0) wait_for_rank_0_message();
  throw Error(error.code(), std::string());
}

}  // namespace gptrain::train
