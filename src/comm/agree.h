// Work that may fail on some ranks, and then ends the run on all with one message.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"

namespace gptrain {

// What `work` returns on each rank, in rank order. Where it throws an Error on some of them, every rank throws the one
// of the lowest: on rank 0 with the message, and which rank it is from, on the others with an empty one. Collective
// over `group`, which has all ranks of the world (null: there is one); `work` itself must not be collective.
std::vector<std::string> agree(Communicator* group, const World& world, const std::function<std::string()>& work);

// The same for work without a result.
void agree_on(Communicator* group, const World& world, const std::function<void()>& work);

}  // namespace gptrain
