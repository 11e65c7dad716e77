#include "base/append.h"

#include <fmt/format.h>
#include <iterator>

namespace gptrain::inline base {

void append_formatted(std::string& text, fmt::string_view format, fmt::format_args arguments) {
  fmt::vformat_to(std::back_inserter(text), format, arguments);
}

}  // namespace gptrain::base
