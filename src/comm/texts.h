// Exchanges texts between ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace gptrain::inline comm {

// All functions are collective over `group` (null: one rank) and throw Error(device) as every collective does.

// Returns the text of `root` on every rank.
std::string broadcast_text(Communicator* group, const std::string& text, int root);
// Calls `body` on rank 0 with every rank's text, one at a time in rank order. Other ranks do not call it.
void pass_texts_to_first(Communicator* group, const std::string& text,
                         const std::function<void(const std::string&)>& body);
// Returns every rank's text, in rank order, on every rank.
std::vector<std::string> gather_texts(Communicator* group, const std::string& text);

}  // namespace gptrain::comm
