#include <algorithm>
#include <fmt/format.h>
#include <iterator>

#include "base/printable.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"

namespace gptrain {
namespace {

constexpr std::string_view weight_prefix = "weight/";

}  // namespace

std::string inspect_checkpoint(const std::filesystem::path& checkpoint) {
  const Contents contents = read_contents(checkpoint);
  const Manifest& manifest = contents.stored.manifest;
  int64_t parameters = 0;
  size_t name_width = std::string_view("tensor").size();
  size_t shape_width = std::string_view("shape").size();
  for (const auto& [name, tensor] : contents.tensors) {
    if (name.starts_with(weight_prefix)) parameters += *num_elements(tensor.global_shape);
    name_width = std::max(name_width, printable(name).size());
    shape_width = std::max(shape_width, printable(format_shape(tensor.global_shape)).size());
  }
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "checkpoint   {}\n", checkpoint.string());
  fmt::format_to(out, "step         {} ({} updates, {} skipped)\n", format_grouped(manifest.step),
                 format_grouped(manifest.updates), format_grouped(manifest.skipped));
  fmt::format_to(out, "samples      {}\n", format_grouped(manifest.samples));
  fmt::format_to(out, "parameters   {}\n", format_grouped(parameters));
  fmt::format_to(out, "seed         {}\n", manifest.seed);
  fmt::format_to(out, "world size   {}\n", manifest.world_size);
  fmt::format_to(out, "build        {}\n", printable(manifest.build));
  for (const FileRecord& file : contents.stored.files) {
    fmt::format_to(out, "file         {}, {}\n", printable(file.name), format_bytes(static_cast<double>(file.bytes)));
  }
  fmt::format_to(out, "\n{:<{}}  {:<{}}  dtype  slices\n", "tensor", name_width, "shape", shape_width);
  for (const auto& [name, tensor] : contents.tensors) {
    fmt::format_to(out, "{:<{}}  {:<{}}  {:<5}  {}\n", printable(name), name_width,
                   printable(format_shape(tensor.global_shape)), shape_width, dtype_name(tensor.dtype),
                   tensor.boxes.size());
  }
  return text;
}

}  // namespace gptrain
