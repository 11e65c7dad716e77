// Regular expressions with their Unicode classes spelled out.
#pragma once

#include <string>
#include <string_view>

namespace gptrain {

// `pattern` for PCRE2 in UTF mode, with \p{...}, \P{...}, \s and \S as ranges of code points. Throws Error(usage),
// saying `where`, for a construct that the reference tokenizers' engines do not read as PCRE2 does.
std::string spell_out_classes(std::string_view pattern, const std::string& where);

}  // namespace gptrain
