#include "train/samples.h"

#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/output.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"
#include "comm/texts.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "train/generate.h"

namespace gptrain {
namespace {

namespace fs = std::filesystem;

fs::path sampling_folder(const fs::path& out) { return out / ".sampling"; }

}  // namespace

void require_tokenizer_of_samples(const RunConfig& config, const RunTokenizer& tokenizer) {
  if (config.run.sample_every_steps == 0 || tokenizer.tokenizer) return;
  if (!tokenizer.record && config.model.vocab_size == bytes_vocabulary) return;  // as generate takes it
  throw Error(ExitCode::usage,
              "run.sample_every_steps = {}: the tokenizer of the data is not known; name it in data.tokenizer",
              config.run.sample_every_steps);
}

Samples::Samples(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
                 const RunTokenizer& tokenizer)
    : context_(context), folder_(folder), step_(step), reporter_(reporter), tokenizer_(tokenizer) {
  // What a run that was killed has left.
  if (context.leads()) remove_folder(sampling_folder(folder.out()));
}

bool Samples::is_due(int64_t step) const {
  const int64_t every = context_.config.run.sample_every_steps;
  return every > 0 && step % every == 0;
}

void Samples::run(const RunProgress& progress) {
  context_.world.activity().set_phase("sample");
  const fs::path saved = checkpoints_folder(folder_.out()) / step_folder_name(progress.step);
  std::error_code ignored;
  const bool is_saved = context_.leads() && fs::exists(saved / manifest_name, ignored);
  if (!broadcast_text(context_.all(), is_saved ? "yes" : "", 0).empty()) {
    if (context_.leads()) write_text(saved, progress.step);
    return;
  }
  const fs::path folder = sampling_folder(folder_.out());
  if (context_.leads()) remove_folder(folder);
  save_weights(context_.config, step_, progress, context_.groups, context_.world, folder, tokenizer_.record);
  if (!context_.leads()) return;
  write_text(checkpoints_folder(folder) / step_folder_name(progress.step), progress.step);
  remove_folder(folder);
}

void Samples::write_text(const fs::path& checkpoint, int64_t step) {
  const RunConfig& config = context_.config;
  GenerateOptions options{.checkpoint = checkpoint,
                          .tokenizer = {},
                          .prompts = {config.run.sample_prompt},
                          .tokens = config.run.sample_tokens,
                          .seed = config.run.seed,
                          .threads = static_cast<int>(config.run.threads)};
  std::string text;
  bool is_prompt = true;
  try {
    generate(options, [&](size_t, std::string_view piece) {
      if (!is_prompt) text += piece;
      is_prompt = false;
    });
  } catch (const Error& error) {
    print_err("warning: no sample after step {}: {}\n", step, error.what());
    return;
  } catch (const std::bad_alloc&) {
    print_err("warning: no sample after step {}: no memory for the model's weights in fp32\n", step);
    return;
  }
  // A character can be cut off at the end, and a model of bytes writes what it likes.
  reporter_.report_sample(step, config.run.sample_prompt, replace_invalid_utf8(text));
}

}  // namespace gptrain
