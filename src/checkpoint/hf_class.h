// The class of transformers that a config.json is of.
#pragma once

#include "checkpoint/hf_names.h"
#include "config/json_text.h"

namespace gptrain::inline checkpoint {

// RETURNS the class. THROWS Error(checkpoint) with the classes that are read if it is none of them, and for a class
// close to them with the part that gptrain's model does not compute. `document`: a JSON object.
const HfClass& hf_class_of(const Json& document);

}  // namespace gptrain::checkpoint
