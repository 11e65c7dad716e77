#pragma once

#include <limits>

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
