// Names that other trainers (Megatron-LM, DeepSpeed, transformers, nanoGPT, torchtitan, Lightning) use for our keys and
// words. A config cannot use them: they only serve to propose our name for an unknown one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline config {

struct Aliases {
  std::string ours;  // our name, as a fault proposes it: "optimizer.lr", `precision.compute = "fp16"`, "cuda"
  // Other trainers' names in lower case, with _ for -; * stands for any letters.
  std::vector<std::string> names;
};

std::span<const Aliases> key_aliases();
std::span<const Aliases> section_aliases();
std::span<const Aliases> word_aliases();
// Keys without a counterpart, under the text of their refusal.
std::span<const Aliases> absent_keys();

// Returns our key for "section.key" of another trainer ("optimizer.learning_rate"; `section` may be empty), found by
// the key alone or by both ("checkpoint.interval" matches checkpoint_interval). Ignores case and takes - as _. Empty if
// unknown.
std::string key_meant(std::string_view section, std::string_view key);
std::string section_meant(std::string_view name);  // our name of another trainer's section; empty if unknown

// Returns the reason why gptrain has no such key and how to reach its purpose, for keys of other trainers without a
// counterpart; empty otherwise. Searched as key_meant.
std::string key_absent(std::string_view section, std::string_view key);

// Returns the one of `choices` that `word` means in other trainers; empty if there is none.
std::string word_meant(std::string_view word, std::span<const std::string> choices);

}  // namespace gptrain::config
