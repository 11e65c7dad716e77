// Expands the Unicode classes of regular expressions.
#pragma once

#include <string>
#include <string_view>

namespace gptrain::inline data {

// Returns `pattern` for PCRE2 in UTF mode, with \p{...}, \P{...}, \s and \S as ranges of code points. Throws
// Error(usage), with `where`, for a construct that the reference tokenizers' engines read differently from PCRE2.
std::string spell_out_classes(std::string_view pattern, const std::string& where);

}  // namespace gptrain::data
