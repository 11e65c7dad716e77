#include "comm/agree.h"

#include <fmt/format.h>

#include "base/error.h"
#include "comm/texts.h"

namespace gptrain::inline comm {

std::vector<std::string> agree(Communicator* group, const World& world, const std::function<std::string()>& work) {
  if (group == nullptr) return {work()};
  // Encodes an outcome: one byte with the exit code, then the result or the message.
  std::string outcome;
  try {
    outcome = static_cast<char>(ExitCode::finished) + work();
  } catch (const Error& error) {
    outcome = static_cast<char>(error.code()) + std::string(error.what());
  }
  std::vector<std::string> outcomes = gather_texts(group, outcome);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto code = static_cast<ExitCode>(outcomes[rank].front());
    outcomes[rank].erase(0, 1);
    if (code == ExitCode::finished) continue;
    if (world.rank() > 0) throw Error(code, std::string());
    const Lines message = Lines::written(outcomes[rank]);
    if (rank == 0) throw Error(code, message);
    throw Error(code, "rank {} ({}): {}", rank, world.host(static_cast<int>(rank)), message);
  }
  return outcomes;
}

void agree_on(Communicator* group, const World& world, const std::function<void()>& work) {
  agree(group, world, [&] {
    work();
    return std::string();
  });
}

}  // namespace gptrain::comm
