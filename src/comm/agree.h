// Work that may fail on some ranks and then ends the run on all of them with one message.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"

namespace gptrain::inline comm {

// Runs `work` on each rank and returns all results in rank order. If `work` throws an Error on some ranks, every rank
// throws the Error of the lowest of them: rank 0 with its message, which names that rank, the others with an empty one,
// so that it is printed once. Collective over `group`, which must hold all ranks of the world (null: one rank). `work`
// must not be collective.
std::vector<std::string> agree(Communicator* group, const World& world, const std::function<std::string()>& work);

// Does the same for work without a result.
void agree_on(Communicator* group, const World& world, const std::function<void()>& work);

}  // namespace gptrain::comm
