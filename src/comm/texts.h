// Texts between ranks: what is decided on one and told to all, and what all tell one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace gptrain {

// Collective over the group; a null group has one rank. Error(device) as for every collective.

// The text of `root`, on every rank.
std::string broadcast_text(Communicator* group, const std::string& text, int root);
// On rank 0 `body` gets every rank's text, in rank order and one at a time; on others it is not called.
void pass_texts_to_first(Communicator* group, const std::string& text,
                         const std::function<void(const std::string&)>& body);
// Every rank's text, in rank order, on every rank.
std::vector<std::string> gather_texts(Communicator* group, const std::string& text);

}  // namespace gptrain
