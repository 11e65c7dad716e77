#include <algorithm>

#include "base/append.h"
#include "base/printable.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"

namespace gptrain {
namespace {


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
  append(text, "checkpoint   {}\n", checkpoint.string());
  append(text, "step         {} ({} updates, {} skipped)\n", format_grouped(manifest.step),
         format_grouped(manifest.updates), format_grouped(manifest.skipped));
  append(text, "samples      {}\n", format_grouped(manifest.samples));
  append(text, "parameters   {}\n", format_grouped(parameters));
  append(text, "seed         {}\n", manifest.seed);
  append(text, "world size   {}\n", manifest.world_size);
  append(text, "build        {}\n", printable(manifest.build));
  for (const FileRecord& file : contents.stored.files) {
    append(text, "file         {}, {}\n", printable(file.name), format_bytes(static_cast<double>(file.bytes)));
  }
  append(text, "\n{:<{}}  {:<{}}  dtype  slices\n", "tensor", name_width, "shape", shape_width);
  for (const auto& [name, tensor] : contents.tensors) {
    append(text, "{:<{}}  {:<{}}  {:<5}  {}\n", printable(name), name_width,
           printable(format_shape(tensor.global_shape)), shape_width, dtype_name(tensor.dtype),
           tensor.boxes.size());
  }
  return text;
}

}  // namespace gptrain
