#pragma once

#include <string_view>
#include <vector>

#include "kernels.h"

namespace pomona {

/// The kernels in use: the best that this processor runs, unless one was chosen.
const Instructions& instructions();

/// All that this processor runs, the best first. The portable ones are always there, as the last.
std::vector<const Instructions*> available_instructions();

/// Uses the kernels of that name from the next product on, for tests and comparisons.
/// @return false where the name is not among the available ones; nothing has changed then.
bool choose_instructions(std::string_view name);

}  // namespace pomona
