// Numbers for people: "57.1k", "1.9 GiB", "3d 4h".
#pragma once

#include <cstdint>
#include <string>

namespace gptrain::inline base {

std::string format_count(double count);  // three digits and k, M, G, T, P, E, Z (powers of 1000): "57.1k", "1.00e+30"
std::string format_bytes(double bytes);  // powers of 1024: "512 B", "1.9 GiB"
std::string format_duration(double seconds);  // "412 ms", "8.2 s", "33m", "5h 12m", "3d 4h", "1.16e+13 days"
std::string format_grouped(int64_t number);   // "124,439,808"
std::string format_counted(int64_t number, const std::string& noun);  // "1 document", "1,234 documents", "2 batches"

}  // namespace gptrain::base
