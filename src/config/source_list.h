// Lists of data sources as other trainers take them: paths, or weights and paths in turn.
#pragma once

#include "config/json_text.h"

namespace gptrain::inline config {

// Returns the value of data.train for a list in the form of Megatron-LM's --data-path: a text of words, or an array of
// texts and numbers. An empty array if `list` is neither.
Json sources_of_list(const Json& list);

}  // namespace gptrain::config
