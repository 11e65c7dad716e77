#include <algorithm>
#include <fmt/format.h>
#include <optional>

#include "base/append.h"
#include "base/printable.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"
#include "checkpoint/model_check.h"
#include "checkpoint/which_weights.h"
#include "config/fields.h"

namespace gptrain::inline checkpoint {
namespace {

int64_t samples_in(const std::vector<SampleRange>& ranges) {
  int64_t count = 0;
  for (const SampleRange& range : ranges) count += range.count;
  return count;
}

// Returns none if the config cannot be read, so that the rest is still shown.
std::optional<RunConfig> readable_config(const Contents& contents) {
  try {
    return saved_config(contents.checkpoint, contents.stored.manifest);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string tokenizer_text_of(const std::optional<TokenizerRecord>& tokenizer) {
  if (!tokenizer) return "not known";
  if (tokenizer->is_bytes()) return "bytes";
  return fmt::format("vocabulary of {}, sha256 {}", format_grouped(tokenizer->vocab_size),
                     printable(tokenizer->sha256));
}

std::string average_text(const Contents& contents, const std::optional<RunConfig>& config) {
  const std::string prefix = stored_name(WhichWeights::averaged, "");
  const auto first = contents.tensors.lower_bound(prefix);
  if (first == contents.tensors.end() || !first->first.starts_with(prefix)) return "none";
  const std::string decay = config ? fmt::format("optimizer.ema = {}", config->optimizer.ema) : "is there";
  return contents.stored.manifest.progress.updates > 0 ? decay : decay + ", not begun: nothing has been updated";
}

}  // namespace

std::string inspect_checkpoint(const std::filesystem::path& checkpoint) {
  const Contents contents = read_contents(checkpoint);
  const Manifest& manifest = contents.stored.manifest;
  int64_t parameters = 0;
  size_t name_width = std::string_view("tensor").size();
  size_t shape_width = std::string_view("shape").size();
  for (const auto& [name, slices] : contents.tensors) {
    const std::vector<int64_t>& shape = slices.front().global_shape;
    if (name.starts_with(weight_prefix)) parameters += *num_elements(shape);
    name_width = std::max(name_width, printable(name).size());
    shape_width = std::max(shape_width, printable(format_shape(shape)).size());
  }
  std::string text;
  append(text, "checkpoint   {}\n", one_line(checkpoint.native()));
  append(text, "step         {} ({} updates, {} skipped)\n", format_grouped(manifest.progress.step),
         format_grouped(manifest.progress.updates), format_grouped(manifest.progress.skipped));
  append(text, "samples      {}\n", format_grouped(manifest.progress.samples));
  append(text, "parameters   {}\n", format_grouped(parameters));
  if (manifest.progress.rollbacks > 0 || !manifest.progress.left_out.empty()) {
    append(text, "rollbacks    {}, {} left out\n", manifest.progress.rollbacks,
           format_counted(samples_in(manifest.progress.left_out), "sample"));
  }
  const std::optional<RunConfig> config = readable_config(contents);
  if (config && !config->data.skip_samples.empty())
    append(text, "left out     {} by data.skip_samples\n",
           format_counted(samples_in(config->data.skip_samples), "sample"));
  append(
      text, "precision    {}\n",
      config ? find_field("precision.compute")->get(*config).get<std::string>() : "not known: its config is not valid");
  append(text, "tokenizer    {}\n", tokenizer_text_of(manifest.tokenizer));
  append(text, "average      {}\n", average_text(contents, config));
  append(text, "seed         {}\n", manifest.seed);
  append(text, "world size   {}\n", manifest.world_size);
  append(text, "build        {}\n", printable(manifest.build));
  for (const FileRecord& file : contents.stored.files) {
    append(text, "file         {}, {}\n", printable(file.name), format_bytes(static_cast<double>(file.bytes)));
  }
  append(text, "\n{:<{}}  {:<{}}  dtype  slices\n", "tensor", name_width, "shape", shape_width);
  for (const auto& [name, slices] : contents.tensors) {
    append(text, "{:<{}}  {:<{}}  {:<5}  {}\n", printable(name), name_width,
           printable(format_shape(slices.front().global_shape)), shape_width, dtype_name(slices.front().dtype),
           slices.size());
  }
  return text;
}

}  // namespace gptrain::checkpoint
