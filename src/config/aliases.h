// What other trainers (Megatron-LM, DeepSpeed, transformers, nanoGPT, torchtitan, Lightning) call the keys and words of
// a run config. Nothing is read under these names: an unknown one is answered with ours.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

struct Aliases {
  std::string ours;                // as a fault proposes it: "optimizer.lr", `precision.compute = "fp16"`, "cuda"
  std::vector<std::string> names;  // in lower case, with _ for -
};

std::span<const Aliases> key_aliases();
std::span<const Aliases> section_aliases();
std::span<const Aliases> word_aliases();

// Ours for "section.key" ("optimizer.learning_rate"; section may be empty), by the key alone or by both
// ("checkpoint.interval" is checkpoint_interval); without case, - is _. Empty if nobody is known to say so.
std::string key_meant(std::string_view section, std::string_view key);
std::string section_meant(std::string_view name);

// The reason why gptrain has no such key, and the way to its purpose, for keys of other trainers that have no counterpart;
// else empty. Found as key_meant.
std::string key_absent(std::string_view section, std::string_view key);

// The one of `choices` that `word` means elsewhere; empty if there is none.
std::string word_meant(std::string_view word, std::span<const std::string> choices);

}  // namespace gptrain
