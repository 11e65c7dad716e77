// Work that may fail on some ranks, and then ends the run on all with one message.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"

namespace gptrain {

// Runs `work` on each rank and returns all results, in rank order. If it throws an Error on some ranks, every rank
// throws the Error of the lowest of them. Its message, which names that rank, is thrown on rank 0; the others throw an
// empty message, so that it is printed once. Collective over `group`, which has all ranks of the world (null: there is
// one); `work` itself must not be collective.
std::vector<std::string> agree(Communicator* group, const World& world, const std::function<std::string()>& work);

// The same for work without a result.
void agree_on(Communicator* group, const World& world, const std::function<void()>& work);

}  // namespace gptrain
